"""Drive a real `Mainspring` by hand: travel in time, run inline, or step each loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from mainspring.app import Mainspring
from mainspring.engine.loop import SameLoop
from mainspring.engine.runtime import Runtime
from mainspring.model.errors import MainspringError
from mainspring.model.instant import Duration, Ms, duration_ms, instant_ms, to_datetime
from mainspring.model.policies import Role
from mainspring.model.run import Run
from mainspring.ports.store import Runs
from mainspring.testing.virtual import VirtualClock, VirtualTime

#: In one process every change wakes whom it concerns, so polling would only cost virtual seconds.
NO_POLLING: Ms = 3_600_000


class Travel:
    """The time machine of one app: the real engine, on the test's loop, at a time of your choice."""

    def __init__(self, app: Mainspring, clock: VirtualClock, time: VirtualTime) -> None:
        self.app = app
        self.clock = clock
        self._time = time

    @property
    def now(self) -> datetime:
        return to_datetime(self.clock.now())

    async def advance(self, by: Duration) -> None:
        """Let time pass; everything that falls due happens on the way."""
        await self._time.advance(duration_ms(by, field="advance") / 1000)

    async def settle(self) -> None:
        """Let everything happen that is due now."""
        await self._time.settle()

    async def advance_to(self, when: datetime | str) -> None:
        """Let time pass until an instant."""
        await self._time.advance(max(0, instant_ms(when) - self.clock.now()) / 1000)

    def step_wall_clock(self, by_ms: Ms) -> None:
        """What an operator or NTP does: the wall clock jumps, boot time does not."""
        self.clock.step += by_ms

    @property
    def runtime(self) -> Runtime:
        """The engine, for stepping its loops by hand."""
        assert self.app._runtime is not None
        return self.app._runtime

    async def runs(self, schedule: str | None = None, **filters: Any) -> list[Run]:
        """Runs, oldest first."""
        schedule_id = None if schedule is None else (await self.app.get(schedule)).id
        return await self.app.call(
            lambda runtime: runtime.store.find(
                Runs(schedule_id=schedule_id, limit=1_000_000, oldest_first=True, **filters)
            )
        )

    async def fires(self, schedule: str) -> list[datetime]:
        """The fire times of a schedule's runs, in order, in its zone."""
        from mainspring.model.instant import zone

        tz = zone((await self.app.get(schedule)).spec.tz)
        return [to_datetime(run.fire_time, tz) for run in await self.runs(schedule) if run.fire_time is not None]


@contextlib.asynccontextmanager
async def _taken_over(app: Mainspring, start: datetime | str | None) -> AsyncIterator[Travel]:
    if app._runtime is not None:
        raise MainspringError("this Mainspring is in use already: travel before the first call, or close() it")
    clock = VirtualClock(app.clock.now() if start is None else instant_ms(start, field="start"))
    time = VirtualTime(clock)
    before = (app.clock, app._engine, app.settings, app.broker)
    time.attach()
    app.clock, app.broker = clock, None  # a server's time is its own
    app._engine = SameLoop(time._loop)
    app.settings = replace(app.settings, poll=max(app.settings.poll, NO_POLLING), pace=0)
    if app._given_store is not None:
        app._given_store._clock = clock  # type: ignore[attr-defined]  # every embedded store keeps its clock there
    try:
        yield Travel(app, clock, time)
    finally:
        app.clock, app._engine, app.settings, app.broker = before
        time.detach()


@contextlib.asynccontextmanager
async def travel(app: Mainspring, start: datetime | str | None = None, *, role: Role = "all") -> AsyncIterator[Travel]:
    """Run `app` in virtual time: `async with travel(ms, "2026-03-28T22:00Z") as t: await t.advance("6h")`."""
    async with _taken_over(app, start) as machine:
        await app._start(role)
        try:
            await machine.settle()
            yield machine
        finally:
            await _shut(app, machine)


@contextlib.asynccontextmanager
async def manual(app: Mainspring, start: datetime | str | None = None) -> AsyncIterator[Travel]:
    """Nothing runs by itself: step `t.runtime.settler.plan()`, `.rescue()`, `t.runtime.worker.run_once()`…"""
    async with _taken_over(app, start) as machine:
        await app.call(app._declare_all)
        machine.runtime.wire(machine._time._loop, inline=True)
        try:
            yield machine
        finally:
            await app.close()


@contextlib.asynccontextmanager
async def inline(app: Mainspring) -> AsyncIterator[Travel]:
    """Every `enqueue` returns after its run has ended: no waiting, no sleeping, no background."""
    async with travel(app) as machine:

        def settled(verb: Callable[[Any], Coroutine[Any, Any, Any]]) -> Callable[[Any], Coroutine[Any, Any, Any]]:
            async def call_and_settle(work: Any) -> Any:
                answer = await verb(work)
                await machine.settle()
                return answer

            return call_and_settle

        verbs = ("call", "enqueue", "enqueue_many")
        for verb in verbs:
            setattr(app, verb, settled(getattr(app, verb)))  # undone below
        try:
            yield machine
        finally:
            for verb in verbs:
                delattr(app, verb)


async def _shut(app: Mainspring, machine: Travel) -> None:
    """Stop at once: what runs is handed back. Time moves only as far as handlers need to unwind."""
    stopping = asyncio.ensure_future(_stop(app, machine.runtime))
    while not stopping.done():
        await machine.advance("10ms")
    await stopping


async def _stop(app: Mainspring, runtime: Runtime) -> None:
    await runtime.stop_now()
    await runtime.stop(0)
    await app._bus.settle()
    await app.close()
