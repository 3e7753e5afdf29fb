"""Mutants of time limits and requests to stop: a handler that cannot be stopped keeps its run until it ends."""

from __future__ import annotations

from mutants_kind import Mutant

BAD_HANDLERS = "tests/engine/work/test_bad_handlers.py::"
LINGERING = "tests/engine/work/test_lingering.py::"
LIMITS = "tests/executors/test_time_limits.py::"
S = "src/mainspring/"

LIMIT_MUTANTS = (
    Mutant(
        "limit-ends-thread",
        "a thread past its time limit loses its lease, and another attempt begins beside it",
        S + "executors/thread.py",
        "        if overrun is not None:\n            loop",
        "        if True:\n            overrun = overrun or 0\n            loop",
        (LIMITS + "test_a_thread_past_its_time_limit_runs_once_and_its_result_counts",),
    ),
    Mutant(
        "limit-unseen",
        "a thread past its time limit is not asked to stop",
        S + "executors/thread.py",
        "        held.cancelled.set()\n        overrun",
        "        overrun",
        (LIMITS + "test_a_thread_past_its_time_limit_runs_once_and_its_result_counts",),
    ),
    Mutant(
        "cancel-replaces-at-once",
        "a cancelled thread gives up its run and gates at once, so its replacement begins beside it",
        S + "engine/work/worker.py",
        "        if self.slots.withhold(held):\n            self._end(held, why)",
        "        if self.slots.withhold(held) or held.has_slot:\n            self._end(held, why)",
        (LIMITS + "test_cancel_running_starts_the_replacement_only_after_the_thread_has_returned",),
    ),
    Mutant(
        "cancelled-result-dropped",
        "the result of a cancelled thread that returned is dropped",
        S + "executors/thread.py",
        "        return stopped_outcome(held, value_outcome(attempt, value))",
        "        return held.stop or value_outcome(attempt, value)",
        (LIMITS + "test_what_a_cancelled_thread_did_is_what_becomes_of_its_run[return]",),
    ),
    Mutant(
        "stop-gives-run-away",
        "the run of a thread that outlives its engine is handed back, and another engine begins it beside the thread",
        S + "engine/work/stopping.py",
        "    if not worker.waits_for_handlers:",
        "    if worker.running:",
        (LINGERING + "test_a_thread_that_outlives_its_engine_keeps_its_lease_and_its_result_counts[sqlite]",),
    ),
    Mutant(
        "stop-ends-heartbeat",
        "the lease of a thread that outlives its engine is not renewed",
        S + "runtime/lingering.py",
        "            worker.heart.start()\n",
        "",
        (LINGERING + "test_a_thread_that_outlives_its_engine_keeps_its_lease_and_its_result_counts[sqlite]",),
    ),
    Mutant(
        "exit-keeps-runs",
        "a process that exits leaves the runs of its threads to their leases",
        S + "runtime/lingering.py",
        "    for lingering in list(_under_way):\n",
        "    for lingering in list(_under_way)[:0]:\n",
        (LINGERING + "test_at_the_exit_of_the_process_its_runs_are_handed_back_for_a_moment_later[retry]",),
    ),
    Mutant(
        "coroutine-abandoned",
        "a coroutine that swallows its cancellation is abandoned although its task has no overrun",
        S + "engine/work/watchdog.py",
        "            if overrun is not None and late >= overrun:",
        "            if late >= (overrun or 0):",
        (BAD_HANDLERS + "test_a_coroutine_that_swallows_its_cancellation_is_reported_once_and_held_until_it_ends",),
    ),
    Mutant(
        "overrun-untold",
        "the event of an attempt does not tell that it exceeded its time limit",
        S + "engine/work/recorder.py",
        "_ENDS_OF_ATTEMPTS = (RunSucceeded, ",
        "_ENDS_OF_ATTEMPTS = (",
        (LIMITS + "test_a_thread_past_its_time_limit_runs_once_and_its_result_counts",),
    ),
)
