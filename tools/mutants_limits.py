"""Mutants of time limits and requests to stop: a handler that cannot be stopped keeps its run until it ends."""

from __future__ import annotations

from mutants_kind import Mutant

BAD_HANDLERS = "tests/engine/work/test_bad_handlers.py::"
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
