"""Mutants of claims ahead of time."""

from __future__ import annotations

from mutants_kind import Mutant

EARLY = "tests/engine/work/test_early_claims.py::"
S = "src/mainspring/"


def contract(store: str, test: str) -> str:
    folder = store.lower()
    return f"tests/backends/{folder}/test_{folder}_store.py::Test{store}::{test}"


LIMIT = "test_a_run_with_a_shared_gate_is_not_claimed_ahead"
SOON = "test_a_run_due_soon_is_claimed_now_and_starts_at_its_time"

EARLY_MUTANTS = (
    Mutant(
        "called-ahead",
        "a run that is handed to the handlers' loop ahead of its time begins at once",
        S + "executors/coroutine.py",
        "        if wait > 0:\n",
        "        if wait > 3600:\n",
        (EARLY + "test_runs_are_claimed_ahead_and_begin_at_their_time",),
    ),
    Mutant(
        "held-is-begun",
        "a worker begins a run that was claimed ahead as soon as it receives it",
        S + "engine/work/early_claims.py",
        "                if at <= now:\n",
        "                if at <= now + 3600:\n",
        (EARLY + "test_runs_are_claimed_ahead_and_begin_at_their_time",),
    ),
    Mutant(
        "held-at-a-stop",
        "a worker that stops keeps runs that were claimed ahead until their leases end",
        S + "engine/work/worker.py",
        "        for held in [*self.early.remove_all(), *handed_over]:\n",
        "        for held in self.early.remove_all():\n",
        (EARLY + "test_at_a_stop_what_is_held_goes_back_and_keeps_its_time",),
    ),
    Mutant(
        "handed-over-without-a-slot",
        "a run that waits for its time on the handlers' loop begins without a free slot",
        S + "executors/coroutine.py",
        "        return self._take_slot(held)\n",
        "        return True\n",
        (EARLY + "test_no_more_run_at_once_than_there_are_slots_though_more_are_handed_over",),
    ),
    Mutant(
        "slot-for-what-is-over",
        "a run that was handed back still gets a slot at its time",
        S + "engine/work/slots.py",
        "            if held.is_done or self.taken >= self.total:\n",
        "            if self.taken >= self.total:\n",
        (EARLY + "test_a_slot_is_taken_once_and_never_by_a_run_that_is_done",),
    ),
    Mutant(
        "overlap-with-what-has-ended",
        "a run that ended in this process counts as open until its end is stored",
        S + "engine/settler.py",
        "        draft = settle(schedule, _open_runs(row, self._ending, self._is_unserved, known=known), now)\n",
        "        draft = settle(schedule, _open_runs(row, (), self._is_unserved, known=known), now)\n",
        (EARLY + "test_a_fire_is_not_skipped_because_the_last_success_waits_for_company",),
    ),
    Mutant(
        "held-by-the-wall-clock",
        "a run that was claimed ahead waits for the wall clock even when that is set back",
        S + "engine/work/early_claims.py",
        "        wait = min(held.attempt.run.ready_at - self._clock.now(), PLAN_AHEAD_MS) / 1000\n"
        "        held.is_early = True\n"
        "        heappush(self._queue, (self._clock.monotonic() + wait, next(self._count), held))\n",
        "        held.is_early = True\n"
        "        heappush(self._queue, (held.attempt.run.ready_at / 1000, next(self._count), held))\n",
        (EARLY + "test_a_clock_that_is_set_back_delays_no_early_run",),
    ),
    Mutant(
        "at-most-once-is-held",
        "an at-most-once run is claimed ahead by a worker that may die with it",
        S + "engine/work/worker.py",
        'return any(handler.recovery == "fail" for handler in self._handlers.values())',
        "return False",
        (EARLY + "test_what_must_run_at_most_once_is_not_held",),
    ),
    Mutant(
        "lease-ends-early",
        "a run that was claimed ahead may begin before its time when its lease ends before that",
        S + "rules/lifecycle.py",
        "ready_at=max(now, run.ready_at))",
        "ready_at=now)",
        (EARLY + "test_a_lease_that_ends_before_the_time_of_its_run_does_not_make_it_early",),
    ),
    Mutant(
        "limit-held-ahead",
        "runs that were claimed ahead hold the slots of a task's limit (SQLite)",
        S + "model/gate.py",
        "return crashes == 0 and all(gate.startswith(SCHEDULE_GATE_PREFIX) for gate in gates or ())",
        "return crashes == 0",
        (contract("Sqlite", LIMIT),),
    ),
    Mutant(
        "limit-held-ahead-postgres",
        "runs that were claimed ahead hold the slots of a task's limit (PostgreSQL)",
        S + "backends/postgres/claim_sql.py",
        "c.gates IS NULL OR c.gates = '[\"schedule:' || c.schedule_id || '\"]'",
        "c.gates IS NULL OR c.gates IS NOT NULL",
        (contract("Postgres", LIMIT),),
    ),
    Mutant(
        "started-when-claimed",
        "the log has the time of the claim, before the run's time, as its start (SQLite)",
        S + "backends/sqlite/claim.py",
        "started_at = max(?4, ready_at)",
        "started_at = ?4",
        (contract("Sqlite", SOON),),
    ),
)
