"""Virtual time: the timers of the running loop and the engine's clocks move only when a test moves them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from mainspring.model.errors import MainspringError
from mainspring.model.instant import Ms

#: Time stops this much after a timer, or a few steps of the loop's floating-point time where those are longer. Sums of
#: the same waits in another order differ in the last digit: exactly at the timer, a loop that sleeps until a deadline
#: may find the deadline ahead by less than the loop's time can show, and would sleep for that rest for ever.
AFTER_TIMER_SECONDS = 1e-9
#: A timer at most this much after the end of an `advance` is due at that end: the steps of `AFTER_TIMER_SECONDS` may
#: have added up. Clocks show whole milliseconds, so both are the same time.
SAME_TIME_SECONDS = 0.0005


class VirtualClock:
    """A clock that begins at the wall time `now` and stands still until `move_to` moves it.

    The attribute `step` is added to the wall time, in milliseconds, and not to boot and monotonic time.
    """

    def __init__(self, now: Ms) -> None:
        self._start = now
        self._elapsed = 0.0
        self.step: Ms = 0

    def now(self) -> Ms:
        """Return the wall time, in milliseconds since 1970."""
        return self._start + round(self._elapsed * 1000) + self.step

    def boot(self) -> Ms:
        """Return the wall time without the jumps of `step`."""
        return self._start + round(self._elapsed * 1000)

    def monotonic(self) -> float:
        """Return the seconds since the clock was created."""
        return self._elapsed

    def move_to(self, elapsed: float) -> None:
        """Set the number of seconds since the clock was created; an earlier value than before is ignored."""
        self._elapsed = max(self._elapsed, elapsed)


class VirtualTime:
    """Replaces `loop.time()` of a running asyncio loop, so that every sleep and time-out on it is virtual.

    Time moves only inside `advance` and `step`, and only while no callback is ready and no blocking call is under way.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self._loop: Any = None
        self._origin = 0.0
        self._resolution = 0.0
        self._held = 0
        self._free = asyncio.Event()

    def attach(self) -> None:
        """Replace the time of the running loop, and its `run_in_executor`, during whose calls time must stand still.

        Raises: MainspringError for uvloop, whose time cannot be replaced.
        """
        loop = asyncio.get_running_loop()
        if not isinstance(loop, asyncio.BaseEventLoop):
            raise MainspringError("virtual time needs asyncio's own event loop; run this test without uvloop")
        self._loop = loop
        self._origin = loop.time() - self.clock.monotonic()
        self._resolution = self._loop._clock_resolution
        self._loop._clock_resolution = 0.0  # else the loop runs timers before their time, without a move of time
        self._loop.time = self._time
        self._loop.run_in_executor = self._run_in_executor

    def detach(self) -> None:
        """Give the loop its own time and `run_in_executor` back; do nothing if `attach` was not called."""
        if self._loop is not None:
            del self._loop.time, self._loop.run_in_executor
            self._loop._clock_resolution = self._resolution
            self._loop = None

    def _time(self) -> float:
        return self._origin + self.clock.monotonic()

    def hold(self) -> None:
        """Stop time until `release` was called once for each `hold`: a blocking call is under way outside the loop."""
        self._held += 1
        self._free.clear()

    def release(self) -> None:
        """End one `hold`; after the last one, time may move again. Thread: the loop's, also between two turns."""
        self._held -= 1
        if not self._held:
            self._free.set()

    def _run_in_executor(self, executor: Any, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Replace the loop's `run_in_executor`: time stands still until `call` returns in its thread."""
        future: asyncio.Future[Any] = type(self._loop).run_in_executor(self._loop, executor, call, *args)
        self.hold()
        future.add_done_callback(lambda _: self.release())
        return future

    async def settle(self) -> None:
        """Run the loop, without moving time, until no callback is ready, no timer is due and no `hold` is open."""
        await self._run_ready()
        while self._pass_timer(self._time()):
            await self._run_ready()

    async def advance(self, seconds: float) -> None:
        """Move time forward by `seconds`, stopping at each timer so that its callback runs at its time."""
        target = self._time() + seconds
        while await self.step(target):
            pass
        self.clock.move_to(target - self._origin)
        await self.settle()

    async def step(self, target: float | None = None) -> bool:
        """Carry out what is due now, then move time to the next timer and return True.

        The timer's callback runs when the loop runs again. If no timer is due by `target`, do not move time, and return
        False. `target`: in seconds of the loop; None: any time.
        """
        await self.settle()
        return self._pass_timer(math.inf if target is None else target + SAME_TIME_SECONDS)

    async def _run_ready(self) -> None:
        """Run the loop until no callback is ready, no `hold` is open, and its next timer is not a cancelled one."""
        while True:
            await asyncio.sleep(0)  # the loop drops cancelled timers from the head of its heap here
            timers = self._loop._scheduled
            if self._loop._ready or (timers and timers[0]._cancelled):
                continue
            if not self._held:
                return
            await self._free.wait()

    def _pass_timer(self, until: float) -> bool:
        """Move time just past the next timer and return True; False if none is due by `until` (seconds of the loop)."""
        timers = self._loop._scheduled
        if not timers or timers[0]._when > until:
            return False
        when = timers[0]._when
        self.clock.move_to(when + max(AFTER_TIMER_SECONDS, 4 * math.ulp(when)) - self._origin)
        return True
