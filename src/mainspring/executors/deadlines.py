"""Time-outs of many attempts on one loop, with one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.ports.executor import Attempt


class Deadlines:
    """Nearly every attempt ends before its time-out, so entering and leaving must cost next to nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[Attempt], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._until: dict[Attempt, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, attempt: Attempt, seconds: float) -> None:
        """Have `expired` called with the attempt unless it leaves within so many seconds."""
        until = self._until[attempt] = self._loop.time() + seconds
        if self._timer is None or until < self._timer.when():
            self._arm(until)

    def leave(self, attempt: Attempt) -> bool:
        """Forget the attempt; False when its time was up."""
        return self._until.pop(attempt, None) is not None

    def _arm(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(until, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for attempt in [a for a, until in self._until.items() if until <= now]:
            del self._until[attempt]
            self._expired(attempt)
        if self._until:
            self._arm(min(self._until.values()))
