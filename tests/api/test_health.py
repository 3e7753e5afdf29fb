"""Liveness, readiness and dependencies: the reporter, and the three routes that show its reports."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from mainspring import Mainspring
from mainspring.api import health_reporter
from mainspring.api.health_reporter import HealthReporter
from mainspring.app.internals import host_of
from mainspring.backends.memory.broker import MemoryBroker
from mainspring.backends.memory.store import MemoryStore
from mainspring.config.settings import SchedulerSettings, ServerSettings, ServeSettings
from mainspring.model.errors import BrokerUnavailable, StoreUnavailable
from mainspring.ports.store import Query, Schedules
from mainspring.server.http import HttpService
from mainspring.service.api_keys import create_key


class FailingStore(MemoryStore):
    """A store that fails every query while `away` is set."""

    away = False

    async def find(self, query: Query[Any]) -> list[Any]:
        if self.away:
            raise StoreUnavailable("no route to the store")
        return await super().find(query)


def reporter(ms: Mainspring, **more: Any) -> HealthReporter:
    return HealthReporter(ms, ServeSettings(**more))


async def fresh(one: HealthReporter) -> Any:
    """Return a readiness report that is not shared with an earlier caller."""
    one._readiness.drop()
    return await one.readiness()


async def test_an_instance_is_ready_when_every_part_is_healthy() -> None:
    ms = Mainspring("memory://")
    one = reporter(ms)
    assert (await one.readiness()).ready is False  # not started
    async with ms.running():
        report = await fresh(one)
        assert (report.status, report.ready) == ("healthy", True)
        assert set(report.components) == {"store", "planner", "worker", "api"}
        assert all(part.last_updated == report.last_updated for part in report.components.values())


async def test_a_store_that_is_away_makes_the_instance_unhealthy_and_not_ready() -> None:
    store = FailingStore()
    ms = Mainspring("memory://", store=store)
    one = reporter(ms, role="api")
    assert (await one.readiness()).status == "healthy"
    store.away = True
    report = await fresh(one)
    assert (report.status, report.ready) == ("unhealthy", False)
    assert report.components["store"].detail == "no route to the store"
    store.away = False
    assert (await fresh(one)).ready
    await ms.close()


@pytest.mark.tampers  # a row is written past the log
async def test_it_is_not_ready_when_planning_lags() -> None:
    """A schedule has been due for longer than `max_lag` and is not planned."""
    ms = Mainspring("memory://")

    @ms.task
    async def work() -> None: ...

    await ms.schedule("often", work, every="1s")
    one = reporter(ms, scheduler=SchedulerSettings(max_lag=60_000))
    async with ms.running():
        assert (await fresh(one)).ready

        async def plan_nothing(runtime: Any) -> None:
            await runtime.settler.stop()
            (row,) = await runtime.commands.schedules(Schedules())
            runtime.store._schedules[row.id] = replace(row, next_at=runtime.time.now() - 120_000)

        await host_of(ms).call(plan_nothing)
        report = await fresh(one)
        assert report.components["planner"].status == "unhealthy"
        assert "have waited to be planned for 2m" in report.components["planner"].detail
        assert (report.status, report.ready) == ("degraded", False)
        elsewhere = reporter(ms, role="worker", scheduler=SchedulerSettings(max_lag=60_000))
        assert (await elsewhere.readiness()).ready  # a worker does not plan

        async def known_to_be_broken(runtime: Any) -> None:
            (row,) = await runtime.commands.schedules(Schedules())
            runtime.settler._unplannable[row.id] = 1.0

        await host_of(ms).call(known_to_be_broken)
        assert (await fresh(one)).ready  # one schedule that cannot be planned must not stop the rest


async def test_a_loop_in_trouble_is_named_and_makes_the_instance_not_ready() -> None:
    ms = Mainspring("memory://")
    one = reporter(ms)
    async with ms.running():

        async def trouble(runtime: Any) -> None:
            runtime.settler.trouble = "disk full"

        await host_of(ms).call(trouble)
        report = await fresh(one)
        assert (report.components["planner"].status, report.components["planner"].detail) == ("degraded", "disk full")
        assert (report.status, report.ready) == ("degraded", False)


async def test_an_instance_that_is_stopping_is_not_ready() -> None:
    ms = Mainspring("memory://")
    one = reporter(ms)
    async with ms.running():
        assert (await one.readiness()).ready
        one.mark_stopping()
        assert not (await one.readiness()).ready


async def test_many_probes_share_one_query_of_the_store() -> None:
    asked = 0

    class Counting(MemoryStore):
        async def find(self, query: Query[Any]) -> list[Any]:
            nonlocal asked
            asked += 1
            return await super().find(query)

    ms = Mainspring("memory://", store=Counting())
    one = reporter(ms, role="api")
    await asyncio.gather(*(one.readiness() for _ in range(50)))
    assert asked == 1
    await ms.close()


async def test_a_broker_that_is_away_makes_it_degraded_and_leaves_it_ready() -> None:
    class Away(MemoryBroker):
        away = True

        async def has_readers(self, topic: str) -> bool:
            if self.away:
                raise BrokerUnavailable("no route to the broker")
            return False

    broker = Away()
    ms = Mainspring("memory://", broker=broker)
    one = reporter(ms)
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


# ── over HTTP ───────────────────────────────────────────────────────────────

KEYS = {"status", "components", "last_updated"}


@contextlib.asynccontextmanager
async def service(ms: Mainspring, host: str = "127.0.0.1", **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a whole service, access check included, without a socket."""
    settings = ServeSettings(server=ServerSettings(host=host), **more)
    transport = httpx.ASGITransport(HttpService(ms, settings).app)  # type: ignore[arg-type] # an ASGI app
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:3000") as client:
        yield client
    await ms.close()


async def test_liveness_is_200_with_status_components_and_time_while_the_engines_thread_answers() -> None:
    ms = Mainspring("memory://")
    async with service(ms, "0.0.0.0") as client:  # no key: liveness is for every caller
        answer = await client.get("/health")
        assert answer.status_code == 200
        body = answer.json()
        assert set(body) == KEYS
        assert body["status"] == "healthy"
        assert set(body["components"]) == {"engine"}
        assert body["components"]["engine"]["status"] == "healthy"
        assert body["last_updated"].endswith("Z")


async def test_liveness_is_503_while_the_engines_thread_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_reporter, "PROBE_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(health_reporter, "REPORT_LIFETIME_SECONDS", 0.0)
    ms = Mainspring("memory://")
    async with service(ms) as client:
        assert (await client.get("/health")).status_code == 200
        release, blocked = threading.Event(), threading.Event()

        async def block(_: Any) -> None:
            blocked.set()
            release.wait(30)

        blocking = asyncio.create_task(host_of(ms).call(block))
        await asyncio.to_thread(blocked.wait, 30)
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "unhealthy")
        assert answer.json()["components"]["engine"]["detail"] == "no answer within 0.05 s"
        release.set()
        await blocking
        assert (await client.get("/health")).status_code == 200


async def test_liveness_does_not_depend_on_the_store_and_readiness_does() -> None:
    store = FailingStore()
    ms = Mainspring("memory://", store=store)
    async with ms.running(), service(ms) as client:
        store.away = True
        assert (await client.get("/health")).status_code == 200
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
        assert answer.json()["components"]["store"]["detail"] == "no route to the store"
        store.away = False


async def test_dependencies_are_named_for_a_caller_on_loopback() -> None:
    async with service(Mainspring("memory://")) as client:
        body = (await client.get("/api/health")).json()
        assert set(body) == KEYS
        assert set(body["components"]) == {"database"}
        assert body["components"]["database"]["status"] == "healthy"


async def test_dependencies_are_named_for_a_caller_with_a_key_and_not_for_others() -> None:
    store = MemoryStore()
    async with service(Mainspring("memory://", store=store), "0.0.0.0") as client:
        _, token = await create_key(store, "ci")
        assert set((await client.get("/api/health")).json()) == {"status"}
        wrong = await client.get("/api/health", headers={"Authorization": "Bearer wrong"})
        assert set(wrong.json()) == {"status"}
        known = await client.get("/api/health", headers={"Authorization": f"Bearer {token}"})
        assert set(known.json()) == KEYS


async def test_a_broker_is_named_among_the_dependencies_where_one_is_used() -> None:
    ms = Mainspring("memory://", broker="memory://")
    async with ms.running(), service(ms) as client:
        assert set((await client.get("/api/health")).json()["components"]) == {"database", "broker"}


@pytest.mark.parametrize(
    ("url", "broker", "names"),
    [
        ("redis://h", None, {"database", "redis"}),
        ("memory://", "valkey://h", {"database", "broker", "redis"}),
        ("memory://", "memory://", {"database", "broker"}),
    ],
)
async def test_redis_is_named_where_the_store_or_the_broker_is_one(
    url: str, broker: str | None, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ms = Mainspring("memory://", store=MemoryStore(), broker=MemoryBroker() if broker else None)
    one = reporter(ms)
    async with ms.running():
        monkeypatch.setattr(host_of(ms), "url", url)
        monkeypatch.setattr(host_of(ms), "broker", broker)
        report = await one.dependencies()
        assert set(report.components) == names


async def test_dependencies_are_503_while_the_database_is_away() -> None:
    store = FailingStore()
    store.away = True
    async with service(Mainspring("memory://", store=store)) as client:
        answer = await client.get("/api/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "unhealthy")
        assert answer.json()["components"]["database"]["status"] == "unhealthy"
        store.away = False


async def test_a_planner_and_a_worker_serve_their_probes_and_nothing_else() -> None:
    for role in ("planner", "worker"):
        async with service(Mainspring("memory://"), role=role) as client:
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/ready")).status_code == 503  # its engine is not started
            assert (await client.get("/api/health")).status_code == 404


async def test_a_stopped_engine_is_no_fault_where_the_api_is_embedded_in_another_program() -> None:
    ms = Mainspring("memory://")
    report = await HealthReporter(ms).readiness()
    assert (report.status, report.ready) == ("healthy", True)
    assert set(report.components) == {"store", "planner", "api"}
    await ms.close()
