"""Source 001 (Azoth Scheduler) through its door: the basic example, schedule types, task and event handlers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring import Context, Mainspring
from mainspring.compat.handlers import (
    InvalidTask,
    Scheduler,
    TaskEvent,
    TaskHandler,
)
from mainspring.model.errors import (
    WrongArguments,
)
from mainspring.testing import travel
from tests.compat.door_support import stored
from tests.compat.handlers_world import EmailData, World, minutes
from tests.ledger_checks import check_ledger_of


@pytest.fixture
def world() -> World:
    return World()


# ── Basic example ──


async def test_basic_example_a_daily_report_at_midnight(world: World) -> None:
    async with world.travel() as t:
        await world.schedule("daily-report", task_type="generate_report", cron="0 0 0 * * *", payload=[])
        await t.advance("2d")
        assert world.report.fires == [datetime(2026, 3, 3, tzinfo=UTC), datetime(2026, 3, 4, tzinfo=UTC)]
        assert world.events == [TaskEvent("report_generated", [])] * 2
        await check_ledger_of(world.ms)


async def test_basic_example_run_returns_after_shutdown() -> None:
    """On the real clock and a real thread."""
    ms = Mainspring("memory://")
    scheduler = Scheduler(ms)

    class Once(TaskHandler[None]):
        task_type = "once"

        def execute(self, ctx: Context, payload: None) -> TaskEvent:
            scheduler.shutdown()
            return TaskEvent("ended")

    scheduler.with_task_handler(Once())
    await scheduler.schedule_task("now", task_type="once", immediate=True)
    await asyncio.wait_for(scheduler.run(), 30)
    assert await scheduler.result_events() == [TaskEvent("ended")]
    await ms.close()


# ── Schedule types ──


@pytest.mark.parametrize(
    ("cron", "begin", "fires"),
    [
        ("0 0 0 * * *", "2026-03-02T08:00Z", ["03 00:00:00", "04 00:00:00"]),
        ("0 0 */6 * * *", "2026-03-02T08:00Z", ["02 12:00:00", "02 18:00:00"]),
        ("0 0 9 * * 1-5", "2026-03-06T08:00Z", ["06 09:00:00", "09 09:00:00"]),
        ("*/30 * * * * *", "2026-03-02T08:00Z", ["02 08:00:30", "02 08:01:00"]),
    ],
    ids=["daily at midnight", "every 6 hours", "weekdays at 9", "every 30 seconds"],
)
async def test_cron_format_six_fields_with_seconds(world: World, cron: str, begin: str, fires: list[str]) -> None:
    async with travel(world.ms, begin) as t:
        await world.schedule(cron=cron)
        await t.advance("1m" if cron.startswith("*") else "4d")
        assert [f"{fire:%d %H:%M:%S}" for fire in world.report.fires[:2]] == fires


async def test_interval_every_300_seconds(world: World) -> None:
    async with world.travel() as t:
        await world.schedule(interval=300)
        await t.advance("11m")
        assert world.report.fires == [minutes(5), minutes(10)]


@pytest.mark.parametrize("as_number", [True, False], ids=["unix time", "datetime"])
async def test_one_time_one_hour_from_now(world: World, as_number: bool) -> None:
    run_at = minutes(60)
    async with world.travel() as t:
        await world.schedule(one_time=int(run_at.timestamp()) if as_number else run_at)
        await t.advance("3h")
        assert world.report.fires == [run_at]
        assert not (await world.scheduler.get_task("task-id")).enabled


async def test_immediate_is_a_job_queue(world: World) -> None:
    async with world.travel() as t:
        for number in range(3):
            await world.schedule(f"task-{number}", immediate=True, payload=number)
        await t.advance("10ms")
        assert sorted(world.report.payloads) == [0, 1, 2]


# ── Task handlers ──


async def test_email_handler_example_returns_an_event_to_be_processed_by_event_handlers(world: World) -> None:
    async with world.travel() as t:
        await world.schedule(task_type="send_email", immediate=True, payload={"id": 7, "to": "a@b.example"})
        await t.advance("1s")
        assert world.email.sent == [EmailData(7, "a@b.example")]
        assert [event.event_type for event in world.events] == ["email_sent"]
        assert world.events[0].payload["email_id"] == 7


async def test_validate_refuses_with_invalid_task_and_nothing_is_stored(world: World) -> None:
    async with world.travel() as t:
        with pytest.raises(InvalidTask, match="payload: 'send_email' refuses it: 'nobody' is no address"):
            await world.schedule(task_type="send_email", immediate=True, payload={"id": 7, "to": "nobody"})
        assert await stored(t) == ([], [])


async def test_validate_may_raise_invalid_task_itself(world: World) -> None:
    class Strict(TaskHandler[Any]):
        task_type = "strict"

        async def execute(self, ctx: Context, payload: Any) -> TaskEvent:
            return TaskEvent("x")

        def validate(self, payload: Any) -> None:
            raise InvalidTask("payload.size", "is 7", "Use 8")

    world.scheduler.with_task_handler(Strict())
    async with world.travel() as t:
        with pytest.raises(InvalidTask, match=r"payload.size: is 7\. Use 8"):
            await world.schedule(task_type="strict", immediate=True)
        assert await stored(t) == ([], [])


async def test_a_payload_that_does_not_fit_the_type_execute_names_is_refused(world: World) -> None:
    async with world.travel() as t:
        with pytest.raises(WrongArguments, match=r"payload: Expected `int`, got `str` - at `\$\.id`"):
            await world.schedule(task_type="send_email", immediate=True, payload={"id": "seven", "to": "a@b"})
        assert await stored(t) == ([], [])


async def test_the_payload_is_of_the_type_the_class_names_also_when_that_is_local(world: World) -> None:
    class Size(msgspec.Struct):
        width: int

    class Base(TaskHandler[Size]):
        async def execute(self, ctx: Context, payload: Size) -> TaskEvent:
            return TaskEvent("measured", payload.width)

    class Measure(Base):
        task_type = "measure"

    class Unnamed(TaskHandler):  # type: ignore[type-arg]  # what untyped code writes
        task_type = "unnamed"

        async def execute(self, ctx, payload: int):  # type: ignore[no-untyped-def]
            return TaskEvent("counted", payload + 1)

    world.scheduler.with_task_handler(Measure()).with_task_handler(Unnamed())
    async with world.travel() as t:
        await world.schedule("a", task_type="measure", immediate=True, payload={"width": 7})
        await t.advance("1s")
        await world.schedule("b", task_type="unnamed", immediate=True, payload=7)
        await t.advance("1s")
        assert world.events == [TaskEvent("measured", 7), TaskEvent("counted", 8)]
        for task_type, text in (("measure", "width"), ("unnamed", "Expected `int`")):
            with pytest.raises(WrongArguments, match=text):
                await world.schedule("c", task_type=task_type, immediate=True, payload={"size": 7})


PAYLOADS: list[Any] = [
    None,
    True,
    0,
    -7,
    2**53,
    1.5,
    "",
    "käse \N{PILE OF POO} \u0000",
    [],
    {},
    [[[[]]], {"a": [None, {"b": {}}]}],
    {"a": {"k": [1, "two", None]}, "": "empty key", "payload": {"ctx": 1}},
    [None],
    {"event_type": "looks like one", "kind": "task_event"},
]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_the_payload_is_any_json_value(store: str, tmp_path: Path) -> None:
    world = World("memory://" if store == "memory" else f"sqlite:///{tmp_path}/x.db")
    async with world.travel() as t:
        for number, payload in enumerate(PAYLOADS):
            await world.schedule(f"task-{number:02}", immediate=True, payload=payload)
            await t.advance("1s")
        assert world.report.payloads == PAYLOADS
        assert [event.payload for event in world.events] == PAYLOADS
        assert await world.scheduler.result_events() == world.events


async def test_a_handler_that_returns_something_else_fails_with_a_clear_error(world: World) -> None:
    class Wrong(TaskHandler[Any]):
        task_type = "wrong"

        def execute(self, ctx: Context, payload: Any) -> TaskEvent:
            return "done"  # type: ignore[return-value]  # that is the mistake

    world.scheduler.with_task_handler(Wrong())
    async with world.travel() as t:
        await world.schedule(task_type="wrong", immediate=True, max_retries=1)
        await t.advance("1s")
        (executed,) = await world.scheduler.history("task-id")
        assert executed.error == "TypeError: Wrong.execute returned str, not a TaskEvent"


# ── Event handlers ──


async def test_event_handlers_get_the_events_of_their_type_and_a_failing_one_harms_nobody(world: World) -> None:
    class Projection:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        async def handle(self, event: TaskEvent) -> None:
            await asyncio.sleep(0)
            self.seen.append(event.payload)

    def bad(event: TaskEvent) -> None:
        raise RuntimeError("side effect")

    reports, emails = Projection(), Projection()
    world.scheduler.with_event_handler(bad)
    world.scheduler.with_event_handler(reports, "report_generated").with_event_handler(emails, "email_sent")

    @world.ms.task
    async def other() -> dict[str, str]:  # a result that is no event of a handler
        return {"event_type": "report_generated"}

    async with world.travel() as t:
        await other.enqueue()
        await world.schedule(immediate=True, payload="r1")
        await t.advance("1s")
        assert (reports.seen, emails.seen) == (["r1"], [])
        assert world.events == [TaskEvent("report_generated", "r1")]


async def test_events_are_in_the_log_for_handlers_that_were_away(tmp_path: Path) -> None:
    first = World(f"sqlite:///{tmp_path}/x.db")
    async with first.travel() as t:
        await first.schedule(interval=60, payload="r")
        await t.advance("2m")
    again = World(f"sqlite:///{tmp_path}/x.db")
    async with again.travel(minutes(2.5)):
        assert await again.scheduler.result_events() == [TaskEvent("report_generated", "r")] * 2
        assert len(await again.scheduler.result_events(since=minutes(1.5))) == 1
