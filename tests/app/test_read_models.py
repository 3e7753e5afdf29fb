"""What programs read back: schedules and runs with datetimes, words and decoded values, never storage formats."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from fastapi import FastAPI

from mainspring import Http, Mainspring, Priority, Retry, Run, Schedule, Snooze, Window
from mainspring.backends.memory.store import MemoryStore
from mainspring.ports.store import Query
from mainspring.testing import travel

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)  # a Monday


def at(hour: int, minute: int = 0, day: int = 2) -> datetime:
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


async def test_a_schedule_reads_as_it_was_given(ms: Mainspring) -> None:
    @ms.task
    async def report(region: str, copies: int = 1) -> None: ...

    async with travel(ms, START):
        made = await ms.schedule(
            "nightly",
            report,
            cron="0 9 * * Mon-Fri",
            tz="Europe/Berlin",
            args=("eu",),
            kwargs={"copies": 2},
            grace="10m",
            jitter="90s",
            timeout="2h",
            start_deadline="1h",
            retry=Retry(max_attempts=5, initial="250ms"),
            window=Window("08:00-18:00", tz="Europe/Berlin"),
            priority="high",
            queue="mail",
            max_runs=7,
            end=at(12, day=30),
        )
        assert made == await ms.get("nightly") == (await ms.schedules())[0]
        assert (made.name, made.task, made.state, made.enabled) == ("nightly", "report", "active", True)
        assert made.trigger == "At 09:00, Monday through Friday (Europe/Berlin)"
        assert (made.cron, made.every, made.at) == ("0 9 * * Mon-Fri", None, None)
        assert made.next_run is not None
        assert made.next_run.isoformat() == "2026-03-03T09:00:00+01:00"
        assert (made.created_at, made.updated_at) == (START, START)
        assert made.created_at.tzinfo == BERLIN
        assert (made.args, made.kwargs, made.payload) == ([], {"region": "eu", "copies": 2}, None)
        assert (made.grace, made.jitter, made.timeout, made.start_deadline) == ("10m", "1m30s", "2h", "1h")
        assert made.retry is not None
        assert (made.retry["max_attempts"], made.retry["initial"], made.retry["max_delay"]) == (5, "250ms", "1m")
        assert made.window is not None
        assert (made.window["segments"], made.window["tz"]) == (["08:00-18:00"], "Europe/Berlin")
        assert (made.priority, made.queue, made.max_runs, made.end) == ("high", "mail", 7, at(12, day=30))
        assert (made.last_run, made.paused_until, made.reason, made.revision) == (None, None, None, 1)
        assert (made.declared, made.drifted, made.namespace) == (False, False, "default")


async def test_intervals_times_and_agents_read_as_they_were_given(ms: Mainspring) -> None:
    @ms.task
    async def work() -> None: ...

    async with travel(ms, START):
        often = await ms.schedule("often", work, every="1h30m")
        assert (often.every, often.trigger, often.cron, often.next_run) == ("1h30m", "Every 1h30m", None, at(9, 30))
        once = await ms.schedule("once", work, at=[at(10), at(11)])
        assert (once.at, once.next_run) == ([at(10), at(11)], at(10))
        agent = await ms.schedule("agent", Http("https://example.com/x"), payload={"a": [1]}, every="1h")
        assert (agent.task, agent.url, agent.payload, agent.args) == ("http", "https://example.com/x", {"a": [1]}, [])


async def test_pauses_and_edits_show_in_what_they_return(ms: Mainspring) -> None:
    @ms.task
    async def work() -> None: ...

    async with travel(ms, START):
        await ms.schedule("job", work, every="1h")
        paused = await ms.pause("job", reason="migration", until=at(12))
        assert (paused.state, paused.reason, paused.paused_until, paused.next_run) == (
            "paused",
            "migration",
            at(12),
            None,
        )
        assert (await ms.resume("job")).next_run == at(9)
        assert (await ms.update("job", every="2h")).every == "2h"


async def test_runs_read_with_their_schedule_arguments_and_result(ms: Mainspring) -> None:
    @ms.task
    async def add(a: int, b: int = 1) -> dict[str, int]:
        return {"sum": a + b}

    async with travel(ms, START) as t:
        await ms.schedule("sums", add, every="1h", args=(1,), tz="Europe/Berlin", priority="low", queue="default")
        await t.advance("1h")
        (run,) = await ms.runs(schedule="sums")
        assert (run.schedule, run.task, run.state, run.attempt) == ("sums", "add", "succeeded", 1)
        assert (run.kwargs, run.result, run.error, run.priority, run.queue) == (
            {"a": 1},
            {"sum": 2},
            None,
            "low",
            "default",
        )
        assert (run.fire_time, run.due_at, run.started_at, run.ended_at) == (at(9),) * 4
        assert run.fire_time is not None
        assert run.fire_time.isoformat() == "2026-03-02T10:00:00+01:00"
        assert run.idempotency_key == run.id
        schedule = await ms.get("sums")
        assert schedule.last_run == run
        assert (await ms.schedules())[0].last_run == run
        assert await ms.find_by_id(run.id) == run
        await t.advance("1s")  # ids of one millisecond are in no order
        handle = await ms.trigger("sums", args=(5,))
        await t.settle()
        assert (await handle.run()).result == {"sum": 6}
        assert (await ms.get("sums")).last_run == await handle.run()


async def test_a_run_that_waits_for_its_next_attempt_says_when(ms: Mainspring) -> None:
    @ms.task(retry=Retry(max_attempts=2, initial="10m", max_delay="10m", jitter=0))
    async def fails() -> None:
        raise OSError("down")

    async with travel(ms, START) as t:
        handle = await fails.using(unique="one", priority=Priority.CRITICAL).enqueue()
        waiting = await handle.run()
        assert (waiting.schedule, waiting.schedule_id, waiting.next_attempt_at) == (None, None, None)
        assert (waiting.priority, waiting.unique) == ("critical", "one")
        await t.settle()
        run = await handle.run()
        assert (run.state, run.next_attempt_at, run.failures) == ("retrying", START + timedelta(minutes=10), 1)
        assert await ms.find_due(START + timedelta(hours=1)) == [run]
        assert await ms.find_by_status("retrying") == [run]
        cancelled = await ms.cancel(run.id, reason="enough")
        assert (cancelled.state, cancelled.reason, cancelled.ended_at) == ("cancelled", "enough", START)
        assert (await ms.retry(run.id)).state == "waiting"


async def test_the_name_of_a_deleted_schedule_stays_with_its_runs(ms: Mainspring) -> None:
    @ms.task
    async def work() -> None: ...

    async with travel(ms, START) as t:
        await ms.schedule("gone", work, every="1h")
        await t.advance("1h")
        await ms.delete("gone")
        (run,) = await ms.runs()
        assert run.schedule == "gone"


async def test_positional_arguments_stay_positional_and_snoozes_wait(ms: Mainspring) -> None:
    @ms.task
    async def many(first: int, /, *rest: int, flag: bool = False) -> Any:
        return Snooze("1h")

    async with travel(ms, START) as t:
        handle = await many.enqueue(1, 2, 3, flag=True)
        await t.settle()
        run = await handle.run()
        assert (run.args, run.kwargs, run.state, run.result) == ([1, 2, 3], {"flag": True}, "waiting", None)


async def test_a_result_that_is_no_json_stays_text() -> None:
    from mainspring.app.run_view import decode_json

    assert (decode_json('{"a": 1}'), decode_json("<not json>")) == ({"a": 1}, "<not json>")


async def test_to_dict_is_ready_for_json(ms: Mainspring) -> None:
    @ms.task
    async def work(when: datetime) -> datetime:
        return when

    async with travel(ms, START) as t:
        await ms.schedule("job", work, every="1h", args=(at(3),), tz="Europe/Berlin")
        await t.advance("1h")
        found = json.loads(json.dumps((await ms.get("job")).to_dict()))
        assert (found["next_run"], found["enabled"]) == ("2026-03-02T10:00:00Z", True)
        assert found["last_run"] == json.loads(json.dumps((await ms.runs())[0].to_dict()))
        assert found["last_run"]["state"] == "succeeded"
        assert (found["last_run"]["fire_time"], found["last_run"]["result"]) == (
            "2026-03-02T09:00:00Z",
            "2026-03-02T03:00:00Z",
        )
        fields = {field.name for field in dataclasses.fields(Schedule)}
        assert set(found) == fields | {"enabled"}


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (Schedule, "next_at", "next_run is the datetime"),
        (Schedule, "spec", "such as cron, missed, overlap and timeout"),
        (Schedule, "until", "use paused_until"),
        (Run, "body", "its content is `args`, `kwargs` or `payload`"),
        (Run, "lane", "use namespace and queue"),
        (Run, "ms", "use duration_ms"),
        (Run, "nonsense", "Run has no 'nonsense'"),
    ],
)
async def test_a_former_name_says_the_present_one(ms: Mainspring, kind: type, name: str, hint: str) -> None:
    @ms.task
    async def work() -> None: ...

    handle = await work.enqueue()
    found = await handle.run() if kind is Run else await ms.schedule("job", work, every="1h")
    with pytest.raises(AttributeError, match=hint.replace("(", r"\(")):
        getattr(found, name)
    assert not hasattr(found, name)


async def test_a_view_cannot_be_changed(ms: Mainspring) -> None:
    @ms.task
    async def work() -> None: ...

    run = await (await work.enqueue()).run()
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.state = "failed"  # type: ignore[misc, assignment]  # that is what is tested


async def test_the_number_of_queries_does_not_grow_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work(n: int) -> None: ...

    async with travel(ms, START) as t:
        for n in range(30):
            await ms.schedule(f"job{n}", work, every="1h", args=(n,))
        await t.advance("1h")
        asked: list[str] = []
        find = MemoryStore.find

        async def counted(self: MemoryStore, query: Query[Any]) -> Any:
            asked.append(type(query).__name__)
            return await find(self, query)

        monkeypatch.setattr(MemoryStore, "find", counted)
        assert len([one for one in await ms.schedules() if one.last_run is not None]) == 30
        assert sorted(asked) == ["Bodies", "LastRuns", "Schedules"]
        asked.clear()
        assert {run.schedule for run in await ms.runs()} == {f"job{n}" for n in range(30)}
        assert sorted(asked) == ["Bodies", "Runs", "Schedules"]


# ── FastAPI ──


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A FastAPI app whose routes return what Mainspring returns, with and without annotations."""
    ms = Mainspring("memory://")

    @ms.task
    async def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    app = FastAPI(lifespan=ms.lifespan())

    @app.post("/add")
    async def start(a: int, b: int):  # type: ignore[no-untyped-def]  # as programs write it
        handle = await add.enqueue(a, b)
        await handle.result(timeout="20s")
        return await handle.run()

    @app.get("/runs/{run_id}")
    async def typed(run_id: str) -> Run:
        return await ms.find_by_id(run_id)

    @app.get("/schedules")
    async def schedules() -> list[Schedule]:
        return await ms.schedules()

    await ms.schedule("sums", add, cron="0 9 * * *", args=(1, 2), tz="Europe/Berlin")
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://t") as found:
        yield found
    await ms.close()


async def test_fastapi_returns_runs_and_schedules(client: httpx.AsyncClient) -> None:
    answer = await client.post("/add", params={"a": 3, "b": 4})
    assert answer.status_code == 200, answer.text
    run = answer.json()
    assert (run["state"], run["result"], run["kwargs"], run["task"]) == (
        "succeeded",
        {"sum": 7},
        {"a": 3, "b": 4},
        "add",
    )
    assert datetime.fromisoformat(run["ended_at"]).tzinfo is not None
    typed = (await client.get(f"/runs/{run['id']}")).json()
    assert (typed["id"], typed["result"]) == (run["id"], {"sum": 7})
    (schedule,) = (await client.get("/schedules")).json()
    assert (schedule["trigger"], schedule["last_run"]) == ("At 09:00 (Europe/Berlin)", None)
    documented = (await client.get("/openapi.json")).json()["components"]["schemas"]
    assert {"Run", "Schedule"} <= set(documented)
