"""The mistakes that are only possible, or only dangerous, on Redis and Valkey."""

from __future__ import annotations

from mutants_kind import Mutant

VALKEY = "tests/contract/test_redis.py::TestValkey::"
RACES = "tests/contract/test_redis_races.py::"
ANSWERS = "tests/system/test_redis_sent_again.py::"
LOCKS = "tests/system/test_redis_locks.py::"
R = "src/mainspring/stores/redis/"

REDIS_MUTANTS = (
    Mutant(
        "node-clock-redis",
        "leases are judged by the instance's clock, not the server's (Redis)",
        R + "database.py",
        "if now is None and not isinstance(self.clock, SystemClock):",
        "if now is None:",
        (RACES + "test_an_instance_whose_clock_is_ahead_takes_nobodys_lease_on_redis",),
    ),
    Mutant(
        "write-before-check",
        "payloads are written before the guard has been asked (Redis)",
        R + "lua/apply.lua",
        "local function apply(c)\n  local answer = refused(c)\n",
        "local function apply(c)\n  for _, body in ipairs(c[8] or {}) do\n    hput('body', body[1], body[2])\n  end\n"
        "  local answer = refused(c)\n",
        (RACES + "test_what_is_refused_has_written_nothing_at_all",),
    ),
    Mutant(
        "write-step-by-step",
        "a run is written before its gates are looked at: what stumbles there leaves it half done (Redis)",
        R + "lua/apply.lua",
        "  if r then\n    enter(r)\n    save_run(r)\n  end\n",
        "  if r then\n    enter(r)\n    save_run(r)\n    flush()\n  end\n",
        (RACES + "test_a_script_that_stumbles_leaves_nothing_half_done",),
    ),
    Mutant(
        "release-by-anybody",
        "a lease is given up by somebody who does not own it (Redis)",
        R + "lua/release.lua",
        " or old[1] ~= ARGV[2]",
        "",
        (LOCKS + "test_nobody_but_the_owner_renews_or_releases",),
    ),
    Mutant(
        "renew-by-anybody",
        "a lock is renewed by somebody who does not own it (Redis)",
        R + "lua/lease.lua",
        " or old[1] ~= owner",
        "",
        (LOCKS + "test_nobody_but_the_owner_renews_or_releases",),
    ),
    Mutant(
        "token-lost-with-its-term",
        "a lease that has ended is forgotten, and its tokens are given again (Redis)",
        R + "lua/lease.lua",
        "epoch = old and old[2] + 1 or 1",
        "epoch = 1",
        (VALKEY + "test_every_term_has_the_next_epoch_however_the_last_one_ended",),
    ),
    Mutant(
        "cas-without-cursor-redis",
        "a plan is written although another instance planned meanwhile (Redis)",
        R + "lua/apply.lua",
        " or s.cursor ~= asked[2] or s.n ~= asked[3]",
        "",
        (VALKEY + "test_two_planners_one_wins", VALKEY + "test_schedule_compare_and_set"),
    ),
    Mutant(
        "change-forgotten",
        "a change that is sent again, since its answer was lost, is not known any more (Redis)",
        R + "lua/apply.lua",
        "  return by == change\n",
        "  return by == nil\n",
        (ANSWERS + "test_whatever_a_change_is_guarded_by_it_is_found_by_its_id",),
    ),
    Mutant(
        "hold-as-guard",
        "whoever holds a due schedule keeps others from writing it (Redis)",
        R + "lua/apply.lua",
        " or s.n ~= asked[3] then",
        " or s.n ~= asked[3] or tonumber(call('ZSCORE', P .. 'held', id) or 0) > now then",
        (VALKEY + "test_a_hold_guards_nothing",),
    ),
    Mutant(
        "renew-after-the-end-redis",
        "a lease that has ended is renewed (Redis)",
        R + "lua/renew.lua",
        " and (r.lease or 0) > now",
        "",
        (VALKEY + "test_an_ended_lease_is_lost_even_if_nobody_took_it",),
    ),
    Mutant(
        "stale-result-redis",
        "an outcome is taken from a worker whose lease another has by now (Redis)",
        R + "lua/apply.lua",
        " or r.epoch ~= asked then",
        " then",
        (VALKEY + "test_stale_epoch_refused",),
    ),
    Mutant(
        "stale-success-redis",
        "the short way of a success takes it from a worker whose lease another has by now (Redis)",
        R + "lua/succeed.lua",
        " or epoch ~= epochs[i]",
        "",
        (RACES + "test_a_success_under_a_lease_that_another_has_by_now_is_refused",),
    ),
    Mutant(
        "drop-unique-redis",
        "two runs for one fire time are possible (Redis)",
        R + "lua/apply.lua",
        " and not (new[8] and new[9] and hget('fire:' .. new[8], new[9]))",
        "",
        (VALKEY + "test_planned_run_that_exists_is_skipped",),
    ),
)
