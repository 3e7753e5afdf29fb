"""Deadlines: the time-outs of many attempts on one event loop, with one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.ports.executor import HeldRun


class Deadlines:
    """The attempts that run, with their deadlines. Thread: the one event loop.

    `on_expired` is called with each attempt whose time is up. Nearly every attempt ends before its time-out, so
    entering and leaving must cost next to nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[HeldRun], None]) -> None:
        self._loop = loop
        self._on_expired = on_expired
        self._until: dict[HeldRun, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, held: HeldRun, seconds: float) -> None:
        """Have `on_expired` called with the held run unless it leaves within `seconds`."""
        until = self._until[held] = self._loop.time() + seconds
        if self._timer is None or until < self._timer.when():
            self._arm(until)

    def leave(self, held: HeldRun) -> bool:
        """Remove the held run. Return False if its time was up, so that `on_expired` was called."""
        return self._until.pop(held, None) is not None

    def _arm(self, until: float) -> None:
        """Set the one timer to `until`, in the loop's time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(until, self._expire_due)

    def _expire_due(self) -> None:
        """Remove the attempts whose time is up and report them; set the timer for the next one."""
        self._timer = None
        now = self._loop.time()
        for held in [one for one, until in self._until.items() if until <= now]:
            del self._until[held]
            self._on_expired(held)
        if self._until:
            self._arm(min(self._until.values()))
