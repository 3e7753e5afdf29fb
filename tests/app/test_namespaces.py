"""Namespaces: apps that share a store see neither schedules nor runs of another namespace, not even by id."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring import Event, Http, Mainspring, RunScheduled, Schedule, UnknownRun, UnknownSchedule
from mainspring.agents.signing import callback_token
from mainspring.api.app import build
from mainspring.app.internals import host_of
from mainspring.model.ids import is_id

Apps = tuple[Mainspring, Mainspring]


@pytest.fixture
async def apps(tmp_path: Path) -> AsyncIterator[Apps]:
    """Two apps on one store, of the namespaces team-a and team-b."""
    url = f"sqlite:///{tmp_path}/shared.db"
    a, b = Mainspring(url, namespace="team-a"), Mainspring(url, namespace="team-b")
    for app in (a, b):

        @app.task
        async def pay(salary: str = "") -> str:
            return salary

    yield a, b
    await a.close()
    await b.close()


SCHEDULE_CALLS: dict[str, Callable[[Mainspring, str], Awaitable[Any]]] = {
    "get": lambda ms, key: ms.get(key),
    "update": lambda ms, key: ms.update(key, cron="0 3 * * *"),
    "pause": lambda ms, key: ms.pause(key),
    "resume": lambda ms, key: ms.resume(key),
    "trigger": lambda ms, key: ms.trigger(key),
    "delete": lambda ms, key: ms.delete(key),
    "signing_secret": lambda ms, key: ms.signing_secret(key),
    "runs": lambda ms, key: ms.runs(schedule=key),
    "events": lambda ms, key: ms.events(schedule=key),
}


@pytest.mark.parametrize("verb", SCHEDULE_CALLS)
async def test_a_schedule_of_another_namespace_is_unknown_by_id_and_by_name(apps: Apps, verb: str) -> None:
    a, b = apps
    made = await a.schedule("payroll", "pay", cron="0 2 * * *", args=("secret",))
    for key in (made.id, made.name):
        with pytest.raises(UnknownSchedule) as refused:
            await SCHEDULE_CALLS[verb](b, key)
        assert "payroll" not in str(refused.value).replace(key, "")
    assert await a.get("payroll") == made


async def test_a_run_of_another_namespace_is_unknown(apps: Apps) -> None:
    a, b = apps
    run = await a.tasks["pay"].using(delay="1h").enqueue("secret")
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: b.find_by_id(run.id),
        lambda: b.cancel(run.id),
        lambda: b.retry(run.id),
    ]
    for call in calls:
        with pytest.raises(UnknownRun, match=f"^no run has the id '{run.id}'$"):
            await call()
    assert (await a.find_by_id(run.id)).state == "waiting"
    assert (await a.cancel(run.id)).state == "cancelled"


async def test_the_api_answers_404_as_for_an_id_that_does_not_exist(apps: Apps) -> None:
    a, b = apps
    made = await a.schedule("payroll", Http("http://127.0.0.1:9/"), cron="0 2 * * *", payload={"salary": "secret"})
    run = await a.trigger("payroll")
    missing = "01a1f601-0000-7000-8000-000000000000"
    paths: list[tuple[str, str]] = [
        ("GET", "/api/schedules/{schedule}"),
        ("PUT", "/api/schedules/{schedule}"),
        ("DELETE", "/api/schedules/{schedule}"),
        ("POST", "/api/schedules/{schedule}/trigger"),
        ("POST", "/api/schedules/{schedule}/pause"),
        ("POST", "/api/schedules/{schedule}/resume"),
        ("POST", "/api/schedules/{schedule}/rotate-secret"),
        ("GET", "/api/schedules/{schedule}/executions"),
        ("GET", "/api/executions?scheduleId={schedule}"),
        ("GET", "/api/executions/{run}"),
        ("POST", "/api/executions/{run}/cancel"),
        ("POST", "/api/executions/{run}/retry"),
    ]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build(b)), base_url="http://127.0.0.1:3000") as client:
        for method, path in paths:
            theirs, none = [
                await client.request(method, path.format(schedule=schedule, run=run_id), json={})
                for schedule, run_id in ((made.id, run.id), (missing, missing))
            ]
            assert (theirs.status_code, none.status_code) == (404, 404), (method, path, theirs.text)
            detail = theirs.json()["detail"].replace(made.id, missing).replace(run.id, missing)
            assert detail == none.json()["detail"]
    assert replace(await a.get("payroll"), last_run=None) == made


@pytest.mark.tampers
async def test_a_name_like_the_id_of_a_schedule_does_not_hide_it(apps: Apps) -> None:
    """Before, names were looked up first: the schedule with the name received the edits meant for the other."""
    a, _ = apps
    victim = await a.schedule("payroll", "pay", cron="0 2 * * *")
    other = await a.schedule("other", "pay", cron="0 4 * * *")
    with contextlib.closing(sqlite3.connect(a.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        # Earlier versions accepted such a name.
        connection.execute("UPDATE schedule SET name = ? WHERE id = ?", (victim.id, other.id))
    assert is_id(victim.id)
    found: Schedule = await a.get(victim.id)
    assert (found.id, found.name) == (victim.id, "payroll")
    assert (await a.get(other.id)).name == victim.id


async def test_events_of_another_namespace_are_not_listed(apps: Apps) -> None:
    """Before, `events()` returned the events of every namespace, with their payloads' ids, results and reasons."""
    a, b = apps
    await a.schedule("payroll", "pay", cron="0 2 * * *")
    run = await a.tasks["pay"].using(delay="1h").enqueue("secret")
    assert [type(event).__name__ for event in await a.events()] == ["ScheduleCreated", "RunScheduled"]
    assert await b.events() == []
    assert await b.events(run=run.id) == []
    assert await b.events(types=["RunScheduled"]) == []
    assert await a.events(run=run.id) != []


async def test_a_unique_key_holds_in_its_namespace_only(apps: Apps) -> None:
    a, b = apps
    theirs = await a.tasks["pay"].using(delay="1h", unique="march").enqueue("secret")
    mine = await b.tasks["pay"].using(delay="1h", unique="march").enqueue("mine")
    assert mine.id != theirs.id
    assert (await b.find_by_id(mine.id)).namespace == "team-b"
    assert (await b.tasks["pay"].using(delay="1h", unique="march").enqueue("again")).id == mine.id
    assert (await a.tasks["pay"].using(delay="1h", unique="march").enqueue("again")).id == theirs.id


async def test_subscribers_get_no_events_of_another_namespace_that_their_engine_plans(tmp_path: Path) -> None:
    a, b = (Mainspring(f"sqlite:///{tmp_path}/shared.db", namespace=name) for name in ("team-a", "team-b"))
    got: list[Event] = []
    mine = asyncio.Event()

    async def subscriber(event: Event) -> None:
        got.append(event)
        if event.ns == "team-b":
            mine.set()

    b.on_event(RunScheduled, handler=subscriber)

    @b.task
    async def pay() -> None: ...

    @a.task(name="pay")
    async def pay_a() -> None: ...

    await a.schedule("payroll", "pay", every="50ms")
    async with b.running():
        while not await a.runs():  # noqa: ASYNC110 - b's engine plans the schedules of every namespace
            await asyncio.sleep(0.01)
        await pay.enqueue()
        await mine.wait()
    assert {event.ns for event in got} == {"team-b"}
    joined = await b.events(types=["InstanceJoined"])
    assert [event.ns for event in joined] == ["team-b"]
    assert await a.events(types=["InstanceJoined"]) == []
    await a.close()
    await b.close()


async def test_a_callback_to_another_namespace_is_as_unknown_as_a_missing_run(apps: Apps) -> None:
    a, b = apps
    await a.schedule("payroll", Http("http://127.0.0.1:9/"), cron="0 2 * * *")
    run = await a.trigger("payroll")
    (key, _) = await host_of(a).call(lambda runtime: runtime.vault.callback_key())
    token = callback_token(key, run.id, 0, 4_000_000_000_000)
    missing = "01a1f601-0000-7000-8000-000000000000"
    for app, run_id, status in ((b, run.id, 404), (b, missing, 404), (a, run.id, 409)):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(build(app)), base_url="http://127.0.0.1") as client:
            answer = await client.post(
                f"/api/callbacks/{run_id}/heartbeat", headers={"Authorization": f"Bearer {token}"}
            )
        assert answer.status_code == status, answer.text
        assert run.id not in answer.text.replace(run_id, "")


async def test_a_lock_and_an_execution_lease_of_another_namespace_are_free(apps: Apps) -> None:
    a, b = apps
    at = datetime(2026, 1, 1, tzinfo=UTC)
    async with a.lock("report"), b.lock("report", wait=0):
        pass
    async with a.execution_lease("payroll", at), b.execution_lease("payroll", at):
        pass
