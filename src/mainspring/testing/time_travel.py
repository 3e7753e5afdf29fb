"""Run a real `Mainspring` in virtual time.

With `travel`, a test moves the clock. With `inline`, each call of the app carries out the work that it made due. With
`manual`, the test calls each step of the engine's loops.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from datetime import datetime
from typing import Any, TypeVar

from msgspec.structs import replace

from mainspring.app.internals import host_of, queries_of, runner_of, runtime_of
from mainspring.app.mainspring import Mainspring
from mainspring.model.errors import MainspringError
from mainspring.model.instant import Duration, Ms, duration_ms, instant_ms, to_datetime
from mainspring.model.policies import Role
from mainspring.model.run import Run
from mainspring.ports.store import Runs
from mainspring.runtime.engine_thread import SameLoop
from mainspring.runtime.runtime import Runtime
from mainspring.testing.virtual_time import VirtualClock, VirtualTime

T = TypeVar("T")

#: Least poll interval in virtual time. In one process, every change wakes the loops that it concerns. So polls would
#: find nothing, and each would be a timer at which virtual time has to stop.
VIRTUAL_POLL_MS: Ms = 3_600_000


class Travel:
    """One app in virtual time: the real engine on the test's loop, and methods that move its clock."""

    def __init__(self, app: Mainspring, clock: VirtualClock, time: VirtualTime) -> None:
        self.app = app
        self.clock = clock
        self._time = time

    @property
    def now(self) -> datetime:
        """The current virtual time, in UTC."""
        return to_datetime(self.clock.now())

    async def advance(self, by: Duration) -> None:
        """Move time forward by a duration; fires and runs that fall due on the way are carried out."""
        await self._time.advance(duration_ms(by, field="advance") / 1000)

    async def settle(self) -> None:
        """Carry out what is due now, without moving time."""
        await self._time.settle()

    async def advance_to(self, when: datetime | str) -> None:
        """Move time forward to an instant; to one that has passed, only carry out what is due now."""
        await self._time.advance(max(0, instant_ms(when) - self.clock.now()) / 1000)

    def step_wall_clock(self, by_ms: Ms) -> None:
        """Let the wall clock jump, as an operator or NTP does; boot time and monotonic time do not jump."""
        self.clock.step += by_ms

    @property
    def runtime(self) -> Runtime:
        """The engine, for stepping its loops by hand."""
        return runtime_of(self.app)

    async def runs(self, schedule: str | None = None, **filters: Any) -> list[Run]:
        """Return the runs of a schedule, or all runs, oldest first; `filters` are fields of the query `Runs`."""
        schedule_id = None if schedule is None else (await queries_of(self.app).find_schedule(schedule)).id
        return await host_of(self.app).call(
            lambda runtime: runtime.store.find(
                Runs(schedule_id=schedule_id, limit=1_000_000, oldest_first=True, **filters)
            )
        )

    async def fires(self, schedule: str) -> list[datetime]:
        """Return the fire times of a schedule's runs, oldest run first, in the time zone of the schedule.

        Skipped runs, and runs started by `trigger`, are included; fires that only a span covers are not.
        """
        from mainspring.model.instant import load_zone

        tz = load_zone((await queries_of(self.app).find_schedule(schedule)).spec.tz)
        return [to_datetime(run.fire_time, tz) for run in await self.runs(schedule) if run.fire_time is not None]


@contextlib.asynccontextmanager
async def _take_over(app: Mainspring, start: datetime | str | None) -> AsyncIterator[Travel]:
    """Give the app a virtual clock, the running loop as the engine's loop, and no broker. Yield its `Travel`.

    At the end the app is restored. `start` None: time begins at the app's present time. Raises: MainspringError if the
    app is in use.
    """
    host = host_of(app)
    if host.runtime is not None:
        raise MainspringError("this Mainspring is in use already: travel before the first call, or close() it")
    clock = VirtualClock(app.clock.now() if start is None else instant_ms(start, field="start"))
    time = VirtualTime(clock)
    time.attach()
    settings = replace(host.settings, poll=max(host.settings.poll, VIRTUAL_POLL_MS), pace=0)
    environment = replace(
        host.environment,
        clock=clock,
        broker=None,  # a broker's server keeps real time
        engine=SameLoop(time._loop),
        settings=settings,
    )
    before = host.move_to(environment)
    if host.store is not None:
        host.store._clock = clock  # type: ignore[attr-defined]  # every embedded store keeps its clock there
    try:
        yield Travel(app, clock, time)
    finally:
        host.move_to(replace(before, store=host.store))
        time.detach()


@contextlib.asynccontextmanager
async def travel(app: Mainspring, start: datetime | str | None = None, *, role: Role = "all") -> AsyncIterator[Travel]:
    """Run `app` in virtual time: `async with travel(ms, "2026-03-28T22:00Z") as t: await t.advance("6h")`.

    `start` None: time begins at the app's present time. Inside the block, time moves only by methods of `t`. `role`:
    whether the app plans fires, carries out runs, or both.
    """
    async with _take_over(app, start) as machine:
        await runner_of(app).start(role)
        try:
            await machine.settle()
            yield machine
        finally:
            await _shut(app, machine)


@contextlib.asynccontextmanager
async def manual(app: Mainspring, start: datetime | str | None = None) -> AsyncIterator[Travel]:
    """Open `app` in virtual time, and store its declared schedules, without starting its loops.

    The test steps them: `t.runtime.settler.plan()`, `.rescue()`, `t.runtime.worker.run_once()`.
    """
    async with _take_over(app, start) as machine:
        await host_of(app).call(runner_of(app).declare)
        machine.runtime.make_worker(machine._time._loop, inline=True)
        try:
            yield machine
        finally:
            await machine.runtime.presence.leave()
            await app.close()


@contextlib.asynccontextmanager
async def inline(app: Mainspring) -> AsyncIterator[Travel]:
    """Run `app` so that each call, such as `enqueue`, returns when the work that it made due is done.

    Nothing works in the background. What is due later, such as a run with a delay or a retry, needs `Travel.advance`.
    """
    async with travel(app) as machine:
        host = host_of(app)
        engine = SettlingLoop(machine)
        before = host.move_to(replace(host.environment, engine=engine, direct_writes=False))
        try:
            yield machine
        finally:
            host.move_to(replace(before, store=host.store))


class SettlingLoop(SameLoop):
    """The engine's loop for `inline`: each call also carries out everything that it made due."""

    def __init__(self, machine: Travel) -> None:
        super().__init__(machine._time._loop)
        self._machine = machine

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the test's loop, carry out what is due then, and return the result of `work`."""
        result = await work
        await self._machine.settle()
        return result


async def _shut(app: Mainspring, machine: Travel) -> None:
    """Stop the app without waiting for handlers: they are cancelled, and their runs handed back.

    A begun run of a task with `recovery="fail"` ends as lost instead. Time moves in steps of 10 ms until the app has
    stopped, by at least one step, even if no handler runs.
    """
    stopping = asyncio.ensure_future(_stop(app, machine.runtime))
    while not stopping.done():
        await machine.advance("10ms")
    await stopping


async def _stop(app: Mainspring, runtime: Runtime) -> None:
    """Give up the running attempts and hand back their runs, then stop the engine.

    A begun run of a task with `recovery="fail"` ends as lost instead. After the stop, let subscribers handle the events
    so far, and close the app.
    """
    await runtime.stop_now()
    await runtime.stop(0)
    await host_of(app).bus.settle()
    await app.close()
