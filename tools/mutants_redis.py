"""Mutants that are only possible, or only dangerous, on Redis and Valkey."""

from __future__ import annotations

from mutants_kind import Mutant

VALKEY = "tests/backends/redis/test_redis_store.py::TestValkey::"
RACES = "tests/backends/redis/test_redis_races.py::"
ANSWERS = "tests/system/test_redis_resend.py::"
LOCKS = "tests/system/test_redis_locks.py::"
R = "src/mainspring/backends/redis/"

REDIS_MUTANTS = (
    Mutant(
        "node-clock-redis",
        "leases are judged by the instance's clock, not the server's (Redis)",
        R + "database.py",
        "if now is None and not isinstance(self.clock, SystemClock):",
        "if now is None:",
        (RACES + "test_an_instance_whose_clock_is_ahead_takes_no_held_lease_on_redis",),
    ),
    Mutant(
        "write-before-check",
        "payloads are written before the guard is checked (Redis)",
        R + "lua/apply.lua",
        "local function apply_change(c)\n  local answer = check_guard(c)\n",
        "local function apply_change(c)\n"
        "  for _, body in ipairs(c[8] or {}) do\n    hput('body', body[1], body[2])\n  end\n"
        "  local answer = check_guard(c)\n",
        (RACES + "test_a_refused_change_has_written_nothing_on_redis",),
    ),
    Mutant(
        "write-step-by-step",
        "a run is written before its gates are read: an error there leaves a half write (Redis)",
        R + "lua/apply.lua",
        "  if r then\n    index_run(r)\n    save_run(r)\n  end\n",
        "  if r then\n    index_run(r)\n    save_run(r)\n    flush()\n  end\n",
        (RACES + "test_a_script_that_fails_has_written_nothing",),
    ),
    Mutant(
        "release-by-anybody",
        "a lease is released by a process that does not own it (Redis)",
        R + "lua/release.lua",
        " or old[1] ~= ARGV[2]",
        "",
        (LOCKS + "test_only_the_owner_renews_or_releases",),
    ),
    Mutant(
        "renew-by-anybody",
        "a lock is renewed by a process that does not own it (Redis)",
        R + "lua/lease.lua",
        " or old[1] ~= owner",
        "",
        (LOCKS + "test_only_the_owner_renews_or_releases",),
    ),
    Mutant(
        "token-lost-with-its-term",
        "an ended lease is forgotten, and its tokens are issued again (Redis)",
        R + "lua/lease.lua",
        "epoch = old and old[2] + 1 or 1",
        "epoch = 1",
        (VALKEY + "test_each_term_gets_the_next_epoch_however_the_last_one_ended",),
    ),
    Mutant(
        "cas-without-cursor-redis",
        "a plan is written although another instance planned meanwhile (Redis)",
        R + "lua/apply.lua",
        " or s.cursor ~= expected[2] or s.n ~= expected[3]",
        "",
        (VALKEY + "test_two_planners_one_wins", VALKEY + "test_schedule_compare_and_set"),
    ),
    Mutant(
        "change-forgotten",
        "a change that is sent again after a lost answer is not recognised (Redis)",
        R + "lua/apply.lua",
        "  return change_id == change\n",
        "  return change_id == nil\n",
        (ANSWERS + "test_a_resent_change_is_recognised_by_its_id_whatever_its_guard",),
    ),
    Mutant(
        "hold-as-guard",
        "a process that holds a due schedule keeps others from writing it (Redis)",
        R + "lua/apply.lua",
        " or s.n ~= expected[3] then",
        " or s.n ~= expected[3] or tonumber(call('ZSCORE', P .. 'held', id) or 0) > now then",
        (VALKEY + "test_a_hold_prevents_no_change",),
    ),
    Mutant(
        "renew-after-the-end-redis",
        "a lease that has ended is renewed (Redis)",
        R + "lua/renew.lua",
        " and (r.lease or 0) > now",
        "",
        (VALKEY + "test_an_expired_lease_is_lost_before_any_rescue",),
    ),
    Mutant(
        "stale-result-redis",
        "an outcome is accepted from a worker that no longer has the lease (Redis)",
        R + "lua/apply.lua",
        " or r.epoch ~= expected then",
        " then",
        (VALKEY + "test_stale_epoch_refused",),
    ),
    Mutant(
        "stale-success-redis",
        "the fast path of successes accepts one from a worker that no longer has the lease (Redis)",
        R + "lua/complete_runs.lua",
        " or epoch ~= epochs[i]",
        "",
        (RACES + "test_a_success_under_a_lease_that_was_lost_is_refused",),
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
