"""Coroutines (and light synchronous handlers) on the loop that called run()."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mainspring.executors.deadlines import Deadlines
from mainspring.executors.moment import Moment
from mainspring.executors.outcomes import begin, end, raised, returned, timed_out
from mainspring.model.outcome import HandedBack, Outcome
from mainspring.ports.clock import Clock
from mainspring.ports.executor import CURRENT, Attempt, Done

#: Timers of other loops than asyncio's own count whole milliseconds, and may be that much early.
GRAIN = 0.001


class CoroutineExecutor:
    """One asyncio task for each attempt; `start` and `stop` may be called from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, done: Done) -> None:
        self._loop = loop
        self._clock = clock
        self._done = done
        self._live: set[Attempt] = set()  # asyncio itself keeps no task alive
        self._deadlines = Deadlines(loop, self._cancel)
        self._grain = 0.0 if isinstance(loop, asyncio.BaseEventLoop) else GRAIN
        #: Takes a slot for an attempt that was handed over ahead of its time; and who is told that there was none.
        self.take: Callable[[Attempt], bool] = lambda attempt: True
        self.no_slot: Callable[[Attempt], None] = lambda attempt: None

    def start(self, attempts: Sequence[Attempt]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._begin, attempts)
        except RuntimeError:  # the handlers' loop is gone
            for attempt in attempts:
                self._done(attempt, HandedBack("loop_closed"))

    def stop(self, attempt: Attempt) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel, attempt)

    async def close(self) -> None:
        """Nothing is left to close: tasks end with their attempts."""

    def _begin(self, attempts: Sequence[Attempt]) -> None:
        create = self._loop.create_task
        for attempt in attempts:
            self._live.add(attempt)
            attempt.handle = create(self._run(attempt), name=f"mainspring-run-{attempt.run.id}")

    @staticmethod
    def _cancel(attempt: Attempt) -> None:
        # One that has not begun sees `attempt.stop` by itself; cancelled before its first step it would say nothing.
        if attempt.began_at is not None and isinstance(attempt.handle, asyncio.Task):
            attempt.handle.cancel()

    async def _run(self, attempt: Attempt) -> None:
        CURRENT.set(attempt)
        outcome: Outcome | None
        try:
            outcome = await self._outcome(attempt)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if attempt.stop is None and task is not None and not task.cancelling():
                outcome = raised(error)  # nobody cancelled us: the handler awaited something that was
            else:
                outcome = attempt.stop or HandedBack("shutdown", began=attempt.began_at is not None)
        except BaseException as error:  # an attempt must end, whatever its answer does to us
            outcome = raised(error)
        self._live.discard(attempt)
        attempt.handle = None  # the task's context holds the attempt: as a circle they would be the collector's to find
        if outcome is None:
            self.no_slot(attempt)
        else:
            self._done(attempt, outcome)

    async def _outcome(self, attempt: Attempt) -> Outcome | None:
        """What becomes of it; None when its time has come and there is no slot for it."""
        if attempt.handed:
            wait = attempt.not_before - self._clock.monotonic()
            if wait > 0:
                await Moment(self._loop, wait + self._grain)
            if not self.take(attempt):
                return None
        # In this order: the engine sets `stop`, then looks whether it began; so one of the two always gives way.
        begin(attempt, self._clock)
        stop = attempt.stop
        if stop is not None:
            return stop
        if self._clock.boot() >= attempt.trust:
            return HandedBack("not_begun")
        limited = attempt.timeout is not None
        if attempt.timeout is not None:
            self._deadlines.enter(attempt, attempt.timeout / 1000)
        try:
            value = await attempt.handler.call(attempt)
        except asyncio.CancelledError:
            end(attempt, self._clock)
            if limited and not self._deadlines.leave(attempt) and _only_cancelled_once():
                return timed_out(attempt)
            raise
        except BaseException as error:  # SystemExit in a handler is an outcome like any other
            end(attempt, self._clock)
            if limited:
                self._deadlines.leave(attempt)
            return attempt.stop or raised(error)
        end(attempt, self._clock)
        if limited and (not self._deadlines.leave(attempt) or (attempt.ms or 0) > (attempt.timeout or 0)):
            return timed_out(attempt)  # it blocked the loop, or swallowed its cancellation; a thread's rule, too
        return returned(attempt, value)


def _only_cancelled_once() -> bool:
    """The time-out's own cancellation, and nobody else's, ended the handler."""
    task = asyncio.current_task()
    return task is not None and task.uncancel() == 0
