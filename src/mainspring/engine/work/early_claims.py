"""The runs of a worker that were claimed ahead of their time, until their time comes (ADR 17).

They hold no slot while they wait. If a slot is free, a run whose handler runs on the handlers' loop is given to that
loop ahead of its time. The loop begins the attempt at its time, in a slot that is taken then. The outcomes of such runs
are collected when the next group of runs is given away. So at 100 fires per second the engine wakes once for about 20
runs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol

from mainspring.engine.lookahead import PLAN_AHEAD_MS
from mainspring.engine.work.watchdog import ON_LOOP
from mainspring.ports.clock import Clock
from mainspring.ports.executor import HeldRun

#: Call `dispatch_due` this many seconds before the time of the next run.
DISPATCH_LEAD_SECONDS = 0.005
#: Collect outcomes this many seconds after the time of the last run that was given to the handlers' loop.
COLLECT_AFTER_SECONDS = 0.02
#: Collect outcomes after at most this many seconds, even if runs on the handlers' loop have yet to begin.
MAX_DEFER_SECONDS = 0.45
#: Do not defer outcomes for less than this many seconds: no timer is that exact.
MIN_DEFER_SECONDS = 0.001


class DeferrableOutcomes(Protocol):
    """The inbox of the worker's outcomes, which can let the outcomes of runs claimed ahead wait."""

    def drain(self) -> None:
        """Deliver every outcome queued so far to the worker."""
        ...

    def set_deferring(self, *, deferring: bool) -> None:
        """Defer the outcomes of runs claimed ahead (they wait until the next `drain`), or stop deferring them."""
        ...


class EarlyClaims:
    """The runs of one worker that were claimed ahead, ordered by their time. Thread: engine loop."""

    def __init__(
        self,
        clock: Clock,
        outcomes: DeferrableOutcomes,
        has_free_slot: Callable[[], bool | None],
        begin: Callable[[Sequence[HeldRun], Sequence[HeldRun]], None],
    ) -> None:
        """Make an empty queue. `outcomes` is the inbox of the worker's outcomes.

        `begin(due, soon)` receives the runs that leave the queue: it begins those in `due`, whose time has come, as
        slots are free, and gives those in `soon` to the handlers' loop. `has_free_slot` returns True if a slot is free,
        else False. It returns None while runs wait for a slot or the worker stops: then no outcome is deferred.
        """
        self._clock = clock
        self._outcomes = outcomes
        self._has_free_slot = has_free_slot
        self._begin = begin
        self._queue: list[tuple[float, int, HeldRun]] = []
        self._count = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        #: By when the attempts that were given to the handlers' loop should have ended, in monotonic seconds.
        self._ends_at = 0.0

    def add(self, held: HeldRun) -> None:
        """Queue a run until its time, but not for more than `PLAN_AHEAD_MS`, and set its `is_early`.

        Why the limit: a wall clock that is set back must not delay the run.
        """
        wait = min(held.attempt.run.ready_at - self._clock.now(), PLAN_AHEAD_MS) / 1000
        held.is_early = True
        heappush(self._queue, (self._clock.monotonic() + wait, next(self._count), held))

    @property
    def is_empty(self) -> bool:
        """True if no run waits for its time in this queue."""
        return not self._queue

    def dispatch_due(self) -> None:
        """Begin the runs whose time has come, and give the next ones to the handlers' loop if a slot is free.

        Deliver the deferred outcomes first, because they free slots. At the end, set the timer of the next call.
        """
        self._disarm()
        self._outcomes.drain()
        now = self._clock.monotonic()
        due: list[HeldRun] = []
        soon: list[HeldRun] = []
        has_free_slot = self._has_free_slot()
        while self._queue:
            at, _, held = self._queue[0]
            if not held.is_done:
                if at <= now:
                    due.append(held)
                elif has_free_slot and held.attempt.handler.kind in ON_LOOP:
                    held.starts_at = at
                    self._ends_at = max(self._ends_at, at + COLLECT_AFTER_SECONDS)
                    soon.append(held)
                else:
                    break
            heappop(self._queue)
        self._begin(due, soon)
        self._arm(now, defer=has_free_slot is not None and self._ends_at > now + MIN_DEFER_SECONDS)

    def remove_all(self) -> list[HeldRun]:
        """Empty the queue and return the runs that waited in it. Deliver the deferred outcomes, and defer no more."""
        self._disarm()
        waiting = [held for *_, held in self._queue if not held.is_done]
        self._queue.clear()
        self._outcomes.drain()
        return waiting

    def _disarm(self) -> None:
        """Cancel the timer, and defer no more outcomes. The caller then delivers those that are deferred already."""
        # First: an outcome that arrives from now on wakes the engine, so none is left behind by the caller's drain.
        self._outcomes.set_deferring(deferring=False)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, now: float, *, defer: bool) -> None:
        """Set the timer of the next `dispatch_due`, if one is needed. `now`: monotonic seconds.

        With `defer`, outcomes of runs claimed ahead wait until that call.
        """
        times = [min(self._ends_at, now + MAX_DEFER_SECONDS)] if defer else []
        if self._queue:
            at = self._queue[0][0]
            times.append(at - DISPATCH_LEAD_SECONDS if at - DISPATCH_LEAD_SECONDS > now else at)
        if times:
            self._timer = asyncio.get_running_loop().call_later(min(times) - now, self.dispatch_due)
            self._outcomes.set_deferring(deferring=defer)
