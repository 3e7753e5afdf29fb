"""Source 001 through its door: configuration, task management, retry behaviour, durability, bad input."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Context, Mainspring, RunRetrying, UnknownSchedule, UnknownTask
from mainspring.compat.handlers import (
    Scheduler,
    TaskEvent,
    TaskFilter,
    TaskHandler,
)
from mainspring.model.errors import (
    DuplicateTask,
    EmptyName,
    InvalidCron,
    InvalidDuration,
    InvalidInput,
    NaiveDatetime,
    PayloadNotSerialisable,
    ScheduleConflict,
)
from mainspring.testing import travel
from tests.compat.door_support import START, stored
from tests.compat.handlers_world import ReportHandler, World, minutes
from tests.ledger_checks import check_ledger_of


@pytest.fixture
def world() -> World:
    return World()


# ── Configuration ──


async def test_configuration_defaults_of_this_door(world: World) -> None:
    """Poll interval 1 s, 10 at once, 3 retries, 300 s."""
    settings = world.ms.settings
    options = world.ms.tasks["generate_report"].options
    assert (settings.poll, settings.concurrency) == (1_000, 10)
    assert (options.retry.max_attempts, options.timeout) == (3, 300_000)


async def test_configuration_default_max_retries_and_timeout_apply_and_a_task_may_differ() -> None:
    world = World(default_max_retries=2, default_timeout_secs=20)

    class Slow(TaskHandler[float]):
        task_type = "slow"

        async def execute(self, ctx: Context, payload: float) -> TaskEvent:
            await asyncio.sleep(payload)
            return TaskEvent("slept")

    world.scheduler.with_task_handler(Slow())
    async with world.travel() as t:
        await world.schedule("a", task_type="slow", immediate=True, payload=30)
        await world.schedule("b", task_type="slow", immediate=True, payload=30, timeout_secs=60)
        await world.schedule("c", task_type="failing", immediate=True, max_retries=1)
        await t.advance("1h")
        history = {name: await world.scheduler.history(name) for name in "abc"}
        assert [one.error for one in history["a"]] == ["timed out after 20 s"] * 2
        assert [one.success for one in history["b"]] == [True]
        assert [one.error for one in history["c"]] == ["RuntimeError: attempt 1 failed"]


async def test_configuration_max_concurrent_tasks() -> None:
    ms = Mainspring("memory://", concurrency=2, lease_ttl="1h")
    most = now = 0

    class Slow(TaskHandler[Any]):
        task_type = "slow"

        async def execute(self, ctx: Context, payload: Any) -> TaskEvent:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await asyncio.sleep(10)
            now -= 1
            return TaskEvent("slept")

    scheduler = Scheduler(ms, [Slow()])
    async with travel(ms, START) as t:
        for number in range(5):
            await scheduler.schedule_task(f"task-{number}", task_type="slow", immediate=True)
        await t.advance("1m")
        assert (most, len(await scheduler.result_events())) == (2, 5)


# ── Task management ──


async def test_cancel_task_example_no_longer_needed(world: World) -> None:
    async with world.travel() as t:
        await world.schedule(interval=60)
        await t.advance("90s")
        await world.scheduler.cancel_task("task-id", "No longer needed")
        await t.advance("10m")
        assert world.report.fires == [minutes(1)]
        cancelled = await world.ms.events(types=["TaskCancelled"])
        assert [event.reason for event in cancelled] == ["No longer needed"]  # type: ignore[attr-defined]
        with pytest.raises(UnknownSchedule):
            await world.scheduler.get_task("task-id")


async def test_cancel_task_stops_what_runs_of_it(world: World) -> None:
    class Long(TaskHandler[Any]):
        task_type = "long"

        async def execute(self, ctx: Context, payload: Any) -> TaskEvent:
            await asyncio.sleep(200)
            return TaskEvent("never")

    world.scheduler.with_task_handler(Long())
    async with world.travel() as t:
        await world.schedule(task_type="long", immediate=True)
        await t.advance("10s")
        await world.scheduler.cancel_task("task-id", "No longer needed")
        await t.advance("1s")
        (run,) = await t.runs()
        assert (run.state, run.reason) == ("cancelled", "No longer needed")


async def test_get_task_shows_it_and_an_unknown_id_gives_the_nearest(world: World) -> None:
    async with world.travel():
        await world.schedule("daily-report", cron="0 0 0 * * *")
        task = await world.scheduler.get_task("daily-report")
        assert (task.task_id, task.task_type, task.enabled) == ("daily-report", "generate_report", True)
        assert (task.next_run_at, task.retry_count) == (datetime(2026, 3, 3, tzinfo=UTC), 0)
        with pytest.raises(UnknownSchedule, match=r"Did you mean 'daily-report'\?"):
            await world.scheduler.get_task("daily-rapport")


async def test_list_tasks_all_and_only_enabled_ones(world: World) -> None:
    async with world.travel() as t:
        await world.schedule("a", interval=60)
        await world.schedule("b", immediate=True)
        await world.schedule("c", task_type="send_email", interval=60, payload={"id": 1, "to": "a@b"})
        await t.advance("1s")

        async def names(which: TaskFilter | None = None) -> list[str]:
            return [task.task_id for task in await world.scheduler.list_tasks(which)]

        assert await names() == await names(TaskFilter()) == ["a", "b", "c"]
        assert await names(TaskFilter(enabled=True)) == ["a", "c"]
        assert await names(TaskFilter(enabled=False)) == ["b"]
        assert await names(TaskFilter(enabled=True, task_type="send_email")) == ["c"]


async def test_list_tasks_reads_page_after_page(world: World) -> None:
    async with world.travel():
        for number in range(1_001):
            await world.ms.schedule(f"s{number:04}", "generate_report", every="1d", args=(number,))
        listed = await world.scheduler.list_tasks()
        assert [task.task_id for task in listed] == [f"s{number:04}" for number in range(1_001)]


# ── Retry behaviour ──


async def test_a_failing_task_backs_off_1_2_4_minutes_and_succeeds_at_last() -> None:
    world = World(failures=3)
    async with world.travel() as t:
        await world.schedule(task_type="failing", immediate=True, max_retries=4)
        await t.advance("1h")
        waits = [b - a for a, b in zip(world.failing.tried, world.failing.tried[1:], strict=False)]
        assert waits == [timedelta(minutes=n) for n in (1, 2, 4)]
        assert world.events == [TaskEvent("done_at_last")]


async def test_the_failure_is_recorded_with_a_task_executed_event_success_false(world: World) -> None:
    async with world.travel() as t:
        await world.schedule(task_type="failing", immediate=True)
        await t.advance("1h")
        history = await world.scheduler.history("task-id")
        assert [(one.success, one.error) for one in history] == [
            (False, f"RuntimeError: attempt {n} failed") for n in (1, 2, 3)
        ]
        assert len({one.execution_id for one in history}) == 1  # one run, three attempts
        assert [one.completed_at - history[0].completed_at for one in history] == [
            timedelta(minutes=n) for n in (0, 1, 3)
        ]


async def test_the_retry_count_is_incremented_and_seen(world: World) -> None:
    async with world.travel() as t:
        await world.schedule(task_type="failing", interval=3600)
        seen = []
        await t.advance("1h")
        for _ in range(3):
            task = await world.scheduler.get_task("task-id")
            seen.append((task.retry_count, task.enabled))
            await t.advance("2m")
        assert seen == [(1, True), (2, True), (3, False)]


async def test_a_task_whose_retries_are_spent_is_disabled_and_that_is_visible(world: World) -> None:
    async with world.travel() as t:
        await world.schedule(task_type="failing", interval=60)
        await world.schedule("good", interval=3600)
        await t.advance("1d")
        assert len(world.failing.tried) == 3  # three executions in all, then none
        (task,) = await world.scheduler.list_tasks(TaskFilter(enabled=False))
        assert (task.task_id, task.state, task.reason) == ("task-id", "paused", "retries_exhausted")
        assert task.last_error == "RuntimeError: attempt 3 failed"
        assert task.retry_count == 3
        assert len(world.report.fires) == 24
        await check_ledger_of(world.ms)
        await world.ms.resume("task-id")  # it was mended
        world.failing.left = 0
        await t.advance("2m")
        assert world.events[-1] == TaskEvent("done_at_last")


@pytest.mark.parametrize(("max_retries", "executions"), [(0, 1), (1, 1), (2, 2), (3, 3)])
async def test_max_retries_is_executions_in_all(world: World, max_retries: int, executions: int) -> None:
    async with world.travel() as t:
        await world.schedule(task_type="failing", immediate=True, max_retries=max_retries)
        await t.advance("1d")
        assert len(world.failing.tried) == executions
        assert not (await world.scheduler.get_task("task-id")).enabled


# ── Features: event-sourced, durable ──


async def test_all_schedule_operations_are_events_under_the_sources_names(world: World) -> None:
    async with world.travel() as t:
        await world.schedule("a", interval=60)
        await t.advance("1m")
        await world.scheduler.cancel_task("a", "done")
        names = ["TaskScheduled", "TaskExecuted", "TaskCancelled"]
        kinds = {name: [type(event).__name__ for event in await world.ms.events(types=[name])] for name in names}
        assert kinds == {
            "TaskScheduled": ["ScheduleCreated", "RunScheduled"],
            "TaskExecuted": ["RunSucceeded"],
            "TaskCancelled": ["ScheduleDeleted"],
        }


async def test_durable_state_across_restarts_in_the_middle_of_a_backoff(tmp_path: Path) -> None:
    first = World(f"sqlite:///{tmp_path}/x.db")
    async with first.travel() as t:
        await first.schedule(task_type="failing", immediate=True)
        await t.advance("90s")
        assert len(first.failing.tried) == 2
    again = World(f"sqlite:///{tmp_path}/x.db", failures=0)
    async with again.travel(minutes(1.75)) as t:
        again.failing.clock = again.ms.clock
        task = await again.scheduler.get_task("task-id")
        assert (task.retry_count, task.last_error) == (2, "RuntimeError: attempt 2 failed")
        (retrying,) = (await again.ms.events(types=[RunRetrying]))[-1:]
        await t.advance("5m")
        assert [round(at.timestamp() * 1000) for at in again.failing.tried] == [retrying.next_attempt_at]  # type: ignore[attr-defined]
        await check_ledger_of(again.ms)


async def test_the_same_task_again_changes_nothing_and_another_one_is_a_conflict(world: World) -> None:
    async with world.travel():
        first = await world.schedule(interval=60, payload={"a": 1})
        assert await world.schedule(interval=60, payload={"a": 1}) == first
        with pytest.raises(ScheduleConflict, match="name: a schedule called 'task-id' exists"):
            await world.schedule(interval=90, payload={"a": 1})
        await world.schedule(interval=90, payload={"a": 1}, on_conflict="replace")
        assert (await world.ms.get("task-id")).revision == 2


# ── bad input: a clear error, and nothing is stored ──

BAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("unknown type", {"task_type": "generate_raport", "interval": 1}, UnknownTask, "Did you mean 'generate_report'?"),
    ("past", {"one_time": START.timestamp() - 1}, InvalidInput, "one_time: .* lies in the past. Give a later time"),
    ("now", {"one_time": START}, InvalidInput, "one_time: .* lies in the past"),
    ("no zone", {"one_time": datetime(2030, 1, 1)}, NaiveDatetime, "one_time: .* has no time zone"),
    ("endless", {"one_time": float("inf")}, InvalidInput, "one_time: inf is not a unix time"),
    ("a flag", {"one_time": True}, InvalidInput, "one_time: bool is not a datetime"),
    ("bad cron", {"cron": "0 0 0 * *  13 *"}, InvalidCron, "."),
    ("bad hour", {"cron": "0 0 24 * * *"}, InvalidCron, "hour: .*24"),
    ("negative interval", {"interval": -300}, InvalidDuration, "interval: -300 is negative"),
    ("no interval", {"interval": 0}, InvalidDuration, "interval: 0 is too short"),
    ("never", {}, InvalidInput, "schedule: exactly one option must say when to run. Give cron"),
    ("twice", {"cron": "0 0 0 * * *", "interval": 5}, InvalidInput, "schedule: exactly one option must say when"),
    ("retries", {"immediate": True, "max_retries": -1}, InvalidInput, "max_retries: -1 is not a whole number"),
    ("timeout", {"immediate": True, "timeout_secs": -1}, InvalidDuration, "timeout: -1 is negative"),
    ("id", {"task_id": " ", "immediate": True}, EmptyName, "task_id: ' ' is empty"),
    ("no JSON", {"immediate": True, "payload": [{1, 2}, object()]}, PayloadNotSerialisable, "payload"),
    (
        "no number",
        {"immediate": True, "payload": {"x": [float("nan")]}},
        PayloadNotSerialisable,
        r"payload.x\[0\]: nan",
    ),
    ("conflict word", {"immediate": True, "on_conflict": "ask"}, InvalidInput, "on_conflict: 'ask' is not one of"),
]


@pytest.mark.parametrize(("options", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
async def test_bad_input_is_refused_and_nothing_is_stored(
    world: World, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    async with world.travel() as t:
        with pytest.raises(error, match=text):
            await world.schedule(**options)
        assert await stored(t) == ([], [])


def test_bad_handlers_and_settings_are_refused(world: World) -> None:
    class Nameless(TaskHandler[Any]):
        def execute(self, ctx: Context, payload: Any) -> TaskEvent:
            return TaskEvent("x")

    with pytest.raises(InvalidInput, match=r"handler: .* is not a TaskHandler with a task_type"):
        world.scheduler.with_task_handler(Nameless())
    with pytest.raises(InvalidInput, match="handler: "):
        world.scheduler.with_task_handler(print)  # type: ignore[arg-type]  # that is what is refused
    with pytest.raises(DuplicateTask, match="generate_report"):
        world.scheduler.with_task_handler(ReportHandler())
    with pytest.raises(InvalidInput, match="default_max_retries: 'many'"):
        Scheduler(Mainspring("memory://"), default_max_retries="many")  # type: ignore[arg-type]  # likewise
