"""Virtual time neither stops nor skips a timer because of rounding, whatever the time of the loop was before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainspring import Mainspring
from mainspring.testing import VirtualClock, VirtualTime, travel

#: Times of a loop, in seconds since the machine's start, at which a sum of waits came out shorter than the waits.
ORIGINS = (120.0651929028255, 219.24666309443725, 238.90220734450642, 31_536_000.123)


@asynccontextmanager
async def taken_over(origin: float) -> AsyncIterator[tuple[VirtualClock, VirtualTime]]:
    """Give the running loop virtual time as if its own time were `origin`."""
    asyncio.get_running_loop().time = lambda: origin  # type: ignore[method-assign]  # the machine's uptime
    clock = VirtualClock(0)
    time = VirtualTime(clock)
    time.attach()
    try:
        yield clock, time
    finally:
        time.detach()


async def wait_for_each(clock: VirtualClock, waits: list[float]) -> int:
    """Wait until each deadline by sleeping for its rest, as the engine's loops do; return how often it woke."""
    wakes = 0
    for wait in waits:
        deadline = clock.monotonic() + wait
        while (rest := deadline - clock.monotonic()) > 0:
            assert wakes < len(waits), f"the rest of a wait, {rest} s, never passes"
            wakes += 1
            await asyncio.sleep(rest)
    return wakes


@settings(max_examples=200, deadline=None)
@given(
    origin=st.floats(0, 1e9),
    waits=st.lists(st.floats(0.001, 3_600).map(lambda wait: round(wait, 3)), min_size=1, max_size=20),
)
@example(origin=ORIGINS[2], waits=[90.0, 5.0, 5.0])
def test_a_loop_that_sleeps_until_a_deadline_wakes_once(origin: float, waits: list[float]) -> None:
    async def trial() -> None:
        async with taken_over(origin) as (clock, time):
            waiting = asyncio.ensure_future(wait_for_each(clock, waits))
            await time.advance(sum(waits) + 1)
            assert waiting.done()
            assert waiting.result() == len(waits)

    asyncio.run(trial())


@settings(max_examples=200, deadline=None)
@given(origin=st.floats(0, 1e9), seconds=st.floats(0.001, 3_600).map(lambda wait: round(wait, 3)))
def test_a_timer_that_is_due_when_an_advance_ends_has_run(origin: float, seconds: float) -> None:
    async def trial() -> None:
        async with taken_over(origin) as (clock, time):
            for moved in range(1, 5):
                sleeping = asyncio.ensure_future(asyncio.sleep(seconds))
                await asyncio.sleep(0)
                await time.advance(seconds)
                assert sleeping.done()
                assert clock.now() == pytest.approx(moved * seconds * 1000, abs=1)

    asyncio.run(trial())


@pytest.mark.parametrize("origin", ORIGINS)
async def test_planning_goes_on_after_a_step_of_the_clock(origin: float) -> None:
    asyncio.get_running_loop().time = lambda: origin  # type: ignore[method-assign]  # the machine's uptime
    ms = Mainspring("memory://")

    @ms.every("1m", missed="skip")
    async def tick() -> None: ...

    async with travel(ms, "2026-01-01T00:00Z") as t:
        await t.advance("90s")
        t.step_wall_clock(3_600_000)
        t.runtime.settler.wake()
        await t.advance("4s")
        t.step_wall_clock(-3_600_000)
        await t.advance("5m")
        assert len(await t.fires("tick")) == 6
