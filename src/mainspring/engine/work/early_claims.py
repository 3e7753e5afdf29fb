"""Runs that were claimed a moment before their time.

They hold no slot while they wait. If a slot is free, attempts that run on the handlers' loop are given to it ahead of
their time; it begins each at its time, in a slot that it takes then. Their outcomes are collected when the next group
is dispatched, so at 100 fires per second the engine wakes once per about 20 runs (ADR 17).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol

from mainspring.engine.lookahead import PLAN_AHEAD
from mainspring.engine.work.watchdog import ON_LOOP
from mainspring.ports.clock import Clock
from mainspring.ports.executor import HeldRun

#: Dispatch this many seconds before the next attempt's time.
LEAD_SECONDS = 0.005
#: Collect outcomes this many seconds after the time of the last attempt that was given to the handlers' loop.
TAIL_SECONDS = 0.02
#: Collect outcomes after at most this many seconds, even if more attempts are still to come.
MAX_DEFER_SECONDS = 0.45
#: Do not defer outcomes for less than this many seconds: no timer is exact to them.
MIN_DEFER_SECONDS = 0.001


class DeferrableOutcomes(Protocol):
    """The inbox that outcomes of early runs go to; see `OutcomeInbox`."""

    def drain(self) -> None: ...

    def set_deferring(self, *, deferring: bool) -> None: ...


class EarlyClaims:
    """The early runs of one worker, ordered by their time. Thread: engine loop."""

    def __init__(
        self,
        clock: Clock,
        outcomes: DeferrableOutcomes,
        has_free_slot: Callable[[], bool | None],
        begin: Callable[[Sequence[HeldRun], Sequence[HeldRun]], None],
    ) -> None:
        """`has_free_slot` returns True or False, or None while runs wait for a slot or the worker stops.

        While it returns None, no outcome is deferred. `begin(due, soon)` begins the attempts `due`, whose time has
        come, as slots are free, and gives those of `soon` to the handlers' loop.
        """
        self._clock = clock
        self._outcomes = outcomes
        self._has_free_slot = has_free_slot
        self._begin = begin
        self._queue: list[tuple[float, int, HeldRun]] = []
        self._count = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        #: When the attempts that were given to the handlers' loop should have ended, in monotonic seconds.
        self._ends_at = 0.0

    def add(self, held: HeldRun) -> None:
        """Queue a held run until its time. A wall clock that is set back meanwhile does not delay it."""
        wait = min(held.attempt.run.ready_at - self._clock.now(), PLAN_AHEAD) / 1000
        held.is_early = True
        heappush(self._queue, (self._clock.monotonic() + wait, next(self._count), held))

    @property
    def is_empty(self) -> bool:
        """True if no attempt waits for its time here."""
        return not self._queue

    def dispatch_due(self) -> None:
        """Begin the attempts whose time has come, and give the next ones to the handlers' loop.

        Before, deliver the outcomes of earlier ones. At the end, set the timer of the next call.
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
                    self._ends_at = max(self._ends_at, at + TAIL_SECONDS)
                    soon.append(held)
                else:
                    break
            heappop(self._queue)
        self._begin(due, soon)
        self._arm(now, defer=has_free_slot is not None and self._ends_at > now + MIN_DEFER_SECONDS)

    def remove_all(self) -> list[HeldRun]:
        """Empty the queue and return the runs that still waited in it. Outcomes of earlier ones are delivered."""
        self._disarm()
        waiting = [held for *_, held in self._queue if not held.is_done]
        self._queue.clear()
        self._outcomes.drain()
        return waiting

    def _disarm(self) -> None:
        """Stop the timer and the deferring of outcomes."""
        # First: outcomes from here on are posted; those left in the inbox before are taken by the drain that follows.
        self._outcomes.set_deferring(deferring=False)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, now: float, *, defer: bool) -> None:
        """Set the timer of the next `dispatch_due`, if one is needed. `defer`: outcomes wait until then."""
        looks = [min(self._ends_at, now + MAX_DEFER_SECONDS)] if defer else []
        if self._queue:
            at = self._queue[0][0]
            looks.append(at - LEAD_SECONDS if at - LEAD_SECONDS > now else at)
        if looks:
            self._timer = asyncio.get_running_loop().call_later(min(looks) - now, self.dispatch_due)
            self._outcomes.set_deferring(deferring=defer)
