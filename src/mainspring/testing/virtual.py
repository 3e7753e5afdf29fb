"""Virtual time: the running loop's timers and our clocks move only when a test says so."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring.model.errors import MainspringError
from mainspring.model.instant import Ms


class VirtualClock:
    """A clock that stands still until moved. Wall time may be stepped apart from the others."""

    def __init__(self, now: Ms) -> None:
        self._start = now
        self._elapsed = 0.0
        self.step: Ms = 0

    def now(self) -> Ms:
        return self._start + round(self._elapsed * 1000) + self.step

    def boot(self) -> Ms:
        return self._start + round(self._elapsed * 1000)

    def monotonic(self) -> float:
        return self._elapsed

    def move_to(self, elapsed: float) -> None:
        """Seconds since the clock was made; never backwards."""
        self._elapsed = max(self._elapsed, elapsed)


class VirtualTime:
    """Takes over `loop.time()` of a running asyncio loop, so that every sleep and time-out on it is virtual.

    Time moves only inside `advance`, and only when nothing is ready to run.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self._loop: Any = None
        self._origin = 0.0

    def attach(self) -> None:
        """Begin on the running loop."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, asyncio.BaseEventLoop):
            raise MainspringError("virtual time needs asyncio's own event loop; run this test without uvloop")
        self._loop = loop
        self._origin = loop.time() - self.clock.monotonic()
        self._loop.time = self._time

    def detach(self) -> None:
        """Give the loop its own time back."""
        if self._loop is not None:
            del self._loop.time
            self._loop = None

    def _time(self) -> float:
        return self._origin + self.clock.monotonic()

    async def settle(self) -> None:
        """Let everything run that can run without time passing."""
        while True:
            await asyncio.sleep(0)
            if not self._loop._ready:
                return

    async def advance(self, seconds: float) -> None:
        """Move from timer to timer until so much time has passed."""
        target = self._time() + seconds
        while True:
            await self.settle()
            await asyncio.sleep(0)  # the loop drops cancelled timers from the head of its heap here
            if self._loop._ready:
                continue
            timers = self._loop._scheduled
            if timers and timers[0]._cancelled:
                continue
            if not timers or timers[0]._when > target:
                break
            self.clock.move_to(timers[0]._when - self._origin)
        self.clock.move_to(target - self._origin)
        await self.settle()
