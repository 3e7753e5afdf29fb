"""Health and readiness: of the store, of planning, of a service that is about to stop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import Mainspring
from mainspring.api.components import Components
from mainspring.brokers.memory import MemoryBroker
from mainspring.config.settings import SchedulerSettings, ServeSettings
from mainspring.model.errors import BrokerUnavailable, StoreUnavailable
from mainspring.ports.store import Query, Schedules
from mainspring.stores.memory import MemoryStore


class Sick(MemoryStore):
    """A store that can be told to be away."""

    away = False

    async def find(self, query: Query[Any]) -> list[Any]:
        if self.away:
            raise StoreUnavailable("no route to the store")
        return await super().find(query)


def components(ms: Mainspring, **more: Any) -> Components:
    return Components(ms, ServeSettings(**more))


async def fresh(one: Components) -> Any:
    one._last = None
    return await one.report()


async def test_it_is_ready_when_everything_is_healthy() -> None:
    ms = Mainspring("memory://")
    one = components(ms)
    assert (await one.report()).ready is False  # not started
    async with ms.running():
        report = await fresh(one)
        assert (report.status, report.ready) == ("healthy", True)
        assert set(report.components) == {"store", "planner", "worker", "api"}
        assert all(part.last_updated == report.last_updated for part in report.components.values())


async def test_a_store_that_is_away_is_unhealthy() -> None:
    store = Sick()
    ms = Mainspring("memory://", store=store)
    one = components(ms, role="api")
    assert (await one.report()).status == "healthy"
    store.away = True
    report = await fresh(one)
    assert (report.status, report.ready) == ("unhealthy", False)
    assert report.components["store"].detail == "no route to the store"
    store.away = False
    assert (await fresh(one)).ready
    await ms.close()


@pytest.mark.tampers  # a row is written past the log
async def test_it_is_not_ready_when_planning_lags() -> None:
    """A schedule that has been due for longer than the lag allowed, and nobody has planned."""
    ms = Mainspring("memory://")

    @ms.task
    async def work() -> None: ...

    await ms.schedule("often", work, every="1s")
    one = components(ms, scheduler=SchedulerSettings(max_lag=60_000))
    async with ms.running():
        assert (await fresh(one)).ready

        async def plan_nothing(runtime: Any) -> None:
            await runtime.settler.stop()
            (row,) = await runtime.commands.schedules(Schedules())
            runtime.store._schedules[row.id] = replace(row, next_at=runtime.time.now() - 120_000)

        await ms.call(plan_nothing)
        report = await fresh(one)
        assert report.components["planner"].status == "unhealthy"
        assert "have waited to be planned for 2m" in report.components["planner"].detail
        assert (report.status, report.ready) == ("degraded", False)
        elsewhere = components(ms, role="worker", scheduler=SchedulerSettings(max_lag=60_000))
        assert (await elsewhere.report()).ready  # planning is not its business

        async def known_to_be_broken(runtime: Any) -> None:
            (row,) = await runtime.commands.schedules(Schedules())
            runtime.settler._said[row.id] = 1.0

        await ms.call(known_to_be_broken)
        assert (await fresh(one)).ready  # one schedule that cannot be planned must not stop the rest


async def test_a_loop_in_trouble_is_named_and_not_ready() -> None:
    ms = Mainspring("memory://")
    one = components(ms)
    async with ms.running():

        async def trouble(runtime: Any) -> None:
            runtime.settler.trouble = "disk full"

        await ms.call(trouble)
        report = await fresh(one)
        assert (report.components["planner"].status, report.components["planner"].detail) == ("degraded", "disk full")
        assert (report.status, report.ready) == ("degraded", False)


async def test_told_to_stop_it_is_not_ready() -> None:
    ms = Mainspring("memory://")
    one = components(ms)
    async with ms.running():
        assert (await one.report()).ready
        one.stopping = True
        assert not (await one.report()).ready


async def test_many_probes_are_one_question() -> None:
    asked = 0

    class Counting(MemoryStore):
        async def find(self, query: Query[Any]) -> list[Any]:
            nonlocal asked
            asked += 1
            return await super().find(query)

    ms = Mainspring("memory://", store=Counting())
    one = components(ms, role="api")
    await asyncio.gather(*(one.report() for _ in range(50)))
    assert asked == 1
    await ms.close()


async def test_a_broker_that_is_away_makes_it_degraded_and_leaves_it_ready() -> None:
    class Away(MemoryBroker):
        away = True

        async def audience(self, topic: str) -> bool:
            if self.away:
                raise BrokerUnavailable("no route to the broker")
            return False

    broker = Away()
    ms = Mainspring("memory://", broker=broker)
    one = components(ms)
    async with ms.running():
        async with asyncio.timeout(10):
            while (report := await fresh(one)).status == "healthy":  # noqa: ASYNC110 - the engine's thread finds out
                await asyncio.sleep(0.01)
        assert (report.status, report.ready) == ("degraded", True)
        assert report.components["broker"].detail == "no route to the broker"
        assert report.components["worker"].status == "healthy"
        broker.away = False
        async with asyncio.timeout(10):
            while (report := await fresh(one)).status != "healthy":  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.01)
        assert report.components["broker"].status == "healthy"
