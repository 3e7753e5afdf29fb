"""The mistakes that become possible when runs are claimed ahead of their time."""

from __future__ import annotations

from mutants_kind import Mutant

EARLY = "tests/engine/test_early.py::"
S = "src/mainspring/"


def contract(store: str, test: str) -> str:
    return f"tests/contract/test_{store.lower()}.py::Test{store}::{test}"


LIMIT = "test_a_gate_that_others_pass_is_not_held_ahead_of_time"
SOON = "test_what_begins_soon_is_given_now_and_starts_at_its_time"

EARLY_MUTANTS = (
    Mutant(
        "called-ahead",
        "what goes to the handlers' loop ahead of its time begins there at once",
        S + "executors/coroutine.py",
        "            if wait > 0:\n",
        "            if wait > 3600:\n",
        (EARLY + "test_runs_are_claimed_ahead_and_begin_at_their_time",),
    ),
    Mutant(
        "held-is-begun",
        "a worker begins what it holds when it gets it",
        S + "engine/early.py",
        "                if at <= now:\n",
        "                if at <= now + 3600:\n",
        (EARLY + "test_runs_are_claimed_ahead_and_begin_at_their_time",),
    ),
    Mutant(
        "held-at-a-stop",
        "a worker that stops keeps what it holds until the lease ends",
        S + "engine/worker.py",
        "            for attempt in [*self.early.give_up(), *handed]:\n",
        "            for attempt in self.early.give_up():\n",
        (EARLY + "test_at_a_stop_what_is_held_goes_back_and_keeps_its_time",),
    ),
    Mutant(
        "handed-over-without-a-slot",
        "what waits for its moment on the handlers' loop begins then, whether there is a slot or not",
        S + "executors/coroutine.py",
        "            if not self.take(attempt):\n                return None\n",
        "",
        (EARLY + "test_no_more_run_at_once_than_there_are_slots_though_more_are_handed_over",),
    ),
    Mutant(
        "slot-for-what-is-over",
        "a run that was handed back still gets a slot at its moment",
        S + "engine/slots.py",
        "            if attempt.done or self.taken >= self.total:\n",
        "            if self.taken >= self.total:\n",
        (EARLY + "test_a_slot_is_taken_once_and_given_to_nobody_who_is_over",),
    ),
    Mutant(
        "overlap-with-what-has-ended",
        "a run that ended here counts as open until its end is stored",
        S + "engine/settler.py",
        "        draft = settle(schedule, _opened(row, self.ending), now)\n",
        "        draft = settle(schedule, _opened(row), now)\n",
        (EARLY + "test_a_fire_is_not_skipped_because_the_last_success_waits_for_company",),
    ),
    Mutant(
        "held-by-the-wall-clock",
        "what is held waits until the clock shows its time, however often it is set back",
        S + "engine/early.py",
        "        wait = min(attempt.run.ready_at - self._clock.now(), AHEAD) / 1000\n"
        "        attempt.early = True\n"
        "        heappush(self._held, (self._clock.monotonic() + wait, next(self._count), attempt))\n",
        "        attempt.early = True\n"
        "        heappush(self._held, (attempt.run.ready_at / 1000, next(self._count), attempt))\n",
        (EARLY + "test_a_clock_that_is_set_back_makes_nobody_wait",),
    ),
    Mutant(
        "at-most-once-is-held",
        "what must run at most once waits in a worker that may die with it",
        S + "engine/worker.py",
        'return any(handler.recovery == "fail" for handler in self._handlers.values())',
        "return False",
        (EARLY + "test_what_must_run_at_most_once_is_not_held",),
    ),
    Mutant(
        "lease-ends-early",
        "a run whose lease ends before its time may begin before its time",
        S + "rules/lifecycle.py",
        "ready_at=max(now, run.ready_at))",
        "ready_at=now)",
        (EARLY + "test_a_lease_that_ends_before_the_time_of_its_run_does_not_make_it_early",),
    ),
    Mutant(
        "limit-held-ahead",
        "runs that do nothing yet hold the places of a task's limit (SQLite)",
        S + "model/gate.py",
        "return crashes == 0 and all(gate.startswith(OWN) for gate in gates or ())",
        "return crashes == 0",
        (contract("Sqlite", LIMIT),),
    ),
    Mutant(
        "limit-held-ahead-postgres",
        "the same on PostgreSQL",
        S + "stores/postgres/claim.py",
        "c.gates IS NULL OR c.gates = '[\"schedule:' || c.schedule_id || '\"]'",
        "c.gates IS NULL OR c.gates IS NOT NULL",
        (contract("Postgres", LIMIT),),
    ),
    Mutant(
        "started-when-claimed",
        "the log says that a run started when it was claimed, before its time (SQLite)",
        S + "stores/sqlite/claim.py",
        "started_at = max(?4, ready_at)",
        "started_at = ?4",
        (contract("Sqlite", SOON),),
    ),
)
