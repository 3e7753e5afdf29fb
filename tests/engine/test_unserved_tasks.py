"""Runs that wait for a task which no live instance has: log, health, ledger, skip reason; no cost without them."""

from __future__ import annotations

import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from mainspring import Mainspring, State
from mainspring.api.app import build
from mainspring.api.health_reporter import HealthReporter
from mainspring.app.internals import host_of
from mainspring.backends.memory.store import MemoryStore
from mainspring.config.settings import ServeSettings
from mainspring.ledger.account import ledger
from mainspring.model.unserved import UnservedTask
from mainspring.ports.store import Leases, Query
from mainspring.testing.time_travel import Travel, travel
from tests.ledger_checks import check_ledger

START = datetime(2026, 3, 2, 8, tzinfo=UTC)
LATER = START + timedelta(seconds=3)
TEXT = (
    "1 run waits for the task 'tick', which no live instance has; schedules: tick. "
    "Start a program that declares it, or delete the schedule"
)


def make(store: MemoryStore, *tasks: str, every: str | None = "1s", **options: Any) -> Mainspring:
    ms = Mainspring(store=store, lease_ttl="10s", heartbeat="2s", **options)

    async def handler() -> None:
        return None

    for task in tasks:
        if every is None:
            ms.task(name=task)(handler)
        else:
            ms.every(every, name=task)(ms.task(name=task)(handler))
    return ms


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def rename(store: MemoryStore) -> None:
    """Leave a schedule `tick` behind whose task no later program has."""
    async with travel(make(store, "tick"), START) as t:
        await t.advance("2s")


async def test_a_renamed_task_is_named_within_10_seconds(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await rename(store)
    async with travel(make(store, "tock"), LATER) as t:
        await t.advance("10s")
        assert warnings(caplog) == [TEXT]
        assert t.app.health().warnings == (TEXT,)
        assert t.app.health().status == "ok"
        book = await ledger(store, t.clock.now())
        assert (book.warnings, book.unexplained) == ([TEXT], 0)
        await t.advance("50m")
        assert warnings(caplog)[0] == TEXT
        assert sum(text == TEXT for text in warnings(caplog)) == 1  # at most once an hour


async def test_fires_behind_such_a_run_are_skipped_for_no_worker() -> None:
    store = MemoryStore()
    await rename(store)
    async with travel(make(store, "tock"), LATER) as t:
        await t.advance("30s")
        (open_run,) = await t.runs("tick", states=(State.WAITING,))
        skips = Counter(run.reason for run in await t.runs("tick", states=(State.SKIPPED,)))
        assert skips["no_worker"] >= 20
        assert skips["overlap"] <= 10  # until the first check
        last = (await t.runs("tick"))[-1]
        assert (last.reason, last.state) == ("no_worker", State.SKIPPED)
        assert open_run.task == "tick"
        assert (await check_ledger(t)).skipped["no_worker"] == skips["no_worker"]


async def test_the_warning_ends_when_a_program_has_the_task(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await rename(store)
    async with travel(make(store, "tock"), LATER) as t:
        await t.advance("10s")
        assert len(t.app.health().warnings) == 1
    caplog.clear()
    async with travel(make(store, "tick", "tock"), LATER + timedelta(seconds=15)) as t:
        await t.advance("10s")
        assert (warnings(caplog), t.app.health().warnings) == ([], ())
        assert [run.state for run in await t.runs("tick")][-8:] == [State.SUCCEEDED] * 8
        assert (await ledger(store, t.clock.now())).warnings == []


async def test_a_run_that_was_enqueued_counts_without_a_schedule(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    async with travel(make(store, "mail", every=None), START, role="planner") as t:
        await t.app.tasks["mail"].enqueue()
        await t.app.tasks["mail"].enqueue()
    async with travel(make(store, "mail", every=None), LATER) as t:
        await t.advance("1s")
    async with travel(make(store, "post", every=None), LATER) as t:
        await host_of(t.app).call(lambda runtime: runtime.store.find(Leases(prefix="instance:")))
        await t.advance("10s")
        assert warnings(caplog) == []  # both were executed
    async with travel(make(store, "mail", every=None), LATER, role="planner") as t:
        await t.app.tasks["mail"].enqueue()
        await t.app.tasks["mail"].enqueue()
        await t.advance("10s")
        assert warnings(caplog) == [
            (
                "2 runs wait for the task 'mail', which no live instance has. "
                "Start a program that declares it, or cancel the runs"
            )
        ]


class CountingStore(MemoryStore):
    """A store that counts the queries, by type, and the claims of nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    async def find(self, query: Query[Any]) -> list[Any]:
        self.calls[type(query).__name__] += 1
        return await super().find(query)

    async def claim(self, offer: Any, limit: int, **rest: Any) -> Any:
        self.calls["claim of nothing"] += limit == 0
        return await super().claim(offer, limit, **rest)


async def count_checks(t: Travel, store: CountingStore) -> Counter[str]:
    store.calls.clear()
    await t.runtime.unserved.run_once()
    return +store.calls


async def test_a_check_costs_the_leader_one_query_while_every_task_has_an_instance() -> None:
    store = CountingStore()
    async with travel(make(store, "tick", "tock"), START) as t:
        await t.advance("30s")
        assert t.runtime.leader.leads
        assert await count_checks(t, store) == {"Leases": 1}
        assert t.runtime.unserved.poll >= 4


async def test_a_check_costs_other_instances_nothing() -> None:
    store = CountingStore()
    async with travel(make(store, "tick"), START) as t:
        await t.runtime.leader.leave()
        assert not t.runtime.leader.leads
        assert await count_checks(t, store) == {}


async def test_a_task_that_nothing_waits_for_costs_one_claim_of_nothing() -> None:
    store = CountingStore()
    async with travel(make(store, "gone", every=None), START):
        pass
    async with travel(make(store, "tick"), LATER) as t:
        await t.advance("10s")
        assert await count_checks(t, store) == {"Leases": 1, "claim of nothing": 1}
        assert t.app.health().warnings == ()


async def test_a_program_that_restarts_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await rename(store)
    async with travel(make(store, "tock"), LATER) as t:
        await t.advance("2s")
    async with travel(make(store, "tick", "tock"), LATER + timedelta(seconds=3)) as t:
        await t.advance("30s")
    assert warnings(caplog) == []


async def test_triggering_a_task_without_an_instance_warns(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await rename(store)
    async with travel(make(store, "tock"), LATER) as t:
        await t.app.trigger("tock")
        assert warnings(caplog) == []
        await t.app.trigger("tick")
        assert warnings(caplog) == [
            (
                "schedule 'tick' was triggered, but no live instance has the task 'tick'; "
                "the run waits until a program that declares it is started"
            )
        ]


def test_the_text_counts_and_names() -> None:
    many = UnservedTask("t", 1_000, tuple("abcdefg"), more=True)
    assert many.describe().startswith("over 1000 runs wait for the task 't'")
    assert "schedules: a, b, c, d, e and 2 more. Start" in many.describe()
    assert "HTTP agents, which no live instance calls" in replace(many, task="http").describe()


async def test_the_api_and_the_ready_route_say_so() -> None:
    store = MemoryStore()
    await rename(store)
    async with travel(make(store, "tock"), LATER) as t:
        await t.advance("10s")
        settings = ServeSettings()
        ready = await HealthReporter(t.app, settings).readiness()
        assert (ready.ready, ready.components["planner"].status) == (True, "healthy")
        assert ready.components["planner"].detail == TEXT
        assert ready.components["store"].detail == ""
        transport = httpx.ASGITransport(app=build(t.app, settings=settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as api:
            assert (await api.get("/api/schedules/tick")).json()["warnings"] == [TEXT]
            assert "warnings" not in (await api.get("/api/schedules/tock")).json()
            made = await api.post("/api/schedules/tick/trigger")
            assert made.json()["warnings"] == [
                "no live instance has the task 'tick'; the run waits until a program that declares it is started"
            ]
            assert "warnings" not in (await api.post("/api/schedules/tock/trigger")).json()
            same = await api.put("/api/schedules/tick", json=(await api.get("/api/schedules/tick")).json())
            assert same.status_code == 200, same.text
