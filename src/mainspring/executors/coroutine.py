"""The coroutine executor: runs coroutines, and light synchronous handlers, on the handlers' event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mainspring.aio.timer import TimerFuture
from mainspring.executors.deadlines import Deadlines
from mainspring.executors.outcomes import (
    error_outcome,
    raised_outcome,
    record_begin,
    record_end,
    stopped_outcome,
    timeout_outcome,
    value_outcome,
)
from mainspring.model.outcome import HandedBack, Outcome
from mainspring.ports.clock import Clock
from mainspring.ports.executor import CURRENT, Done, HeldRun

#: Seconds added to timers on event loops other than asyncio's own (uvloop): these count whole milliseconds, so a timer
#: may end up to a millisecond early.
COARSE_TIMER_SECONDS = 0.001


class CoroutineExecutor:
    """Runs each attempt in an asyncio task on one event loop, the handlers' loop.

    `start` and `stop` may be called on another thread. The attempt's `Execution` is written on the handlers' loop only.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        done: Done,
        *,
        take_slot: Callable[[HeldRun], bool] = lambda held: True,
        on_no_slot: Callable[[HeldRun], None] = lambda held: None,
    ) -> None:
        """Run attempts on `loop`, and call `done` there with each outcome. If `loop` is closed, `start` calls `done`.

        An attempt with `starts_at` was given to `start` ahead of its time: it waits until then and calls `take_slot`.
        If that returns False, it does not begin, and `on_no_slot` is called instead of `done`; both on `loop`.
        """
        self._loop = loop
        self._clock = clock
        self._done = done
        self._live: set[HeldRun] = set()  # asyncio itself keeps only weak references to tasks
        self._deadlines = Deadlines(loop, self._cancel)
        self._timer_slack = 0.0 if isinstance(loop, asyncio.BaseEventLoop) else COARSE_TIMER_SECONDS
        self._take_slot = take_slot
        self._on_no_slot = on_no_slot

    def start(self, held_runs: Sequence[HeldRun]) -> None:
        """Begin the attempts on the handlers' loop soon. If that loop is closed, their outcome is `HandedBack`."""
        try:
            self._loop.call_soon_threadsafe(self._begin, held_runs)
        except RuntimeError:  # the handlers' loop is closed
            for held in held_runs:
                self._done(held, HandedBack("loop_closed"))

    def stop(self, held: HeldRun) -> None:
        """Cancel the task of an attempt soon if the handler has begun; if not, the task checks `held.stop` itself."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel, held)

    async def close(self) -> None:
        """Do nothing: tasks end with their attempts."""

    def _begin(self, held_runs: Sequence[HeldRun]) -> None:
        create = self._loop.create_task
        for held in held_runs:
            self._live.add(held)
            held.execution.handle = create(self._run(held), name=f"mainspring-run-{held.attempt.run.id}")

    @staticmethod
    def _cancel(held: HeldRun) -> None:
        # The task of an attempt that has not begun checks `held.stop` itself. If it were cancelled before its first
        # step, it would end without an outcome.
        execution = held.execution
        if execution.began_at is not None and isinstance(execution.handle, asyncio.Task):
            execution.handle.cancel()

    async def _run(self, held: HeldRun) -> None:
        """Execute the attempt of a held run, and pass the run with the outcome to `done`.

        An attempt that was given to `start` ahead of its time first waits for that time and takes a slot. If no slot is
        free then, it does not begin, and the run is passed to `on_no_slot` instead.
        """
        CURRENT.set(held.attempt)
        outcome: Outcome | None
        try:
            outcome = await self._outcome(held)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if held.stop is None and task is not None and not task.cancelling():
                outcome = error_outcome(
                    error, held.attempt
                )  # the handler awaited something that was cancelled; this task was not
            else:
                outcome = held.stop or HandedBack("shutdown", began=held.execution.began_at is not None)
        except BaseException as error:  # an attempt must end, even if making its outcome fails
            outcome = error_outcome(error)
        self._live.discard(held)
        held.execution.handle = None  # the task refers to the execution: without the cycle both are freed at once
        if outcome is None:
            self._on_no_slot(held)
        else:
            self._done(held, outcome)

    async def _take_slot_at(self, time: float, held: HeldRun) -> bool:
        """Wait until `time`, in monotonic seconds, and take a slot. Return False if no slot is free then."""
        wait = time - self._clock.monotonic()
        if wait > 0:
            await TimerFuture(self._loop, wait + self._timer_slack)
        return self._take_slot(held)

    async def _outcome(self, held: HeldRun) -> Outcome | None:
        """Call the handler and return the outcome; None if the attempt has yet to take a slot and none is free.

        The handler is not called if the attempt should stop already, or if its trust deadline has passed. Raises:
        CancelledError if the task is cancelled, unless its time-out is the only reason.
        """
        if held.starts_at is not None and not await self._take_slot_at(held.starts_at, held):
            return None
        attempt, execution = held.attempt, held.execution
        # The order matters: this task records the begin and then reads `stop`; the engine sets `stop` and then checks
        # whether the attempt has begun. So at least one of the two sees what the other has written.
        record_begin(execution, self._clock)
        stop = held.stop
        if stop is not None:
            return stop
        if self._clock.boot() >= held.lease_trusted_until:
            return HandedBack("not_begun")
        limited = attempt.timeout is not None
        if attempt.timeout is not None:
            self._deadlines.enter(held, attempt.timeout / 1000)
        try:
            value = await attempt.handler.call(held)
        except asyncio.CancelledError:
            record_end(execution, self._clock)
            if limited and not self._deadlines.leave(held) and _was_cancelled_once():
                return timeout_outcome(attempt)
            raise
        except BaseException as error:  # SystemExit in a handler is an outcome like any other
            record_end(execution, self._clock)
            if limited:
                self._deadlines.leave(held)
            return raised_outcome(held, error)
        record_end(execution, self._clock)
        if limited:
            self._deadlines.leave(held)
        return stopped_outcome(held, value_outcome(attempt, value))  # perhaps it swallowed its cancellation


def _was_cancelled_once() -> bool:
    """Undo one cancellation of the present task, the one by its time-out. Return True if there was no other."""
    task = asyncio.current_task()
    return task is not None and task.uncancel() == 0
