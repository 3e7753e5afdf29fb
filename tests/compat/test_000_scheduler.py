"""Source 000 (scheduler-rs) through its door: the scheduling API of §2.3, the events of §3, the quick start."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Context, Mainspring, Retry, UnknownTask
from mainspring.compat.scheduler import (
    LoggingHandler,
    Scheduler,
    TaskCancelled,
    TaskCompleted,
    TaskEvent,
    TaskFailed,
    TaskRetrying,
    TaskScheduled,
    TaskStarted,
)
from mainspring.model.errors import InvalidCron, InvalidDuration, InvalidInput, NaiveDatetime, WrongArguments
from mainspring.testing import travel
from tests.compat.door_support import START, stored


class World:
    """An app, its door, a task that notes when it ran and one that fails."""

    def __init__(self) -> None:
        self.ms = Mainspring("memory://", concurrency=4, lease_ttl="1h")
        self.scheduler = Scheduler(self.ms)
        self.ran: list[tuple[datetime, str]] = []

        @self.ms.task
        async def my_task(ctx: Context, customer: str = "acme") -> str:
            self.ran.append((ctx.fire_time, customer))
            return customer.upper()

        @self.ms.task(retry=Retry(max_attempts=2, initial="10s", jitter=0))
        async def failing() -> None:
            raise ValueError("no luck")

        self.my_task, self.failing = my_task, failing


@pytest.fixture
def world() -> World:
    return World()


def seconds(n: float) -> datetime:
    return START + timedelta(seconds=n)


# ── Quick start: create components, schedule a delayed task, print its id, run ──


async def test_quick_start_basic_usage(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    async with travel(world.ms, START) as t:
        task_id = await world.scheduler.schedule_delayed(world.my_task, timedelta(seconds=60))
        print(f"Task scheduled: {task_id}")
        await t.advance("59s")
        assert world.ran == []
        await t.advance("1s")
        assert world.ran == [(seconds(60), "acme")]
    assert capsys.readouterr().out == f"Task scheduled: {task_id}\n"


async def test_quick_start_run_returns_after_a_graceful_shutdown_and_no_task_is_lost() -> None:
    """On the real clock: `run()` works until asked to stop, and lets what runs finish."""
    ms = Mainspring("memory://")
    scheduler = Scheduler(ms)
    done: list[str] = []

    @ms.task
    async def work() -> None:
        scheduler.shutdown()
        await asyncio.sleep(0)
        done.append("finished")

    await scheduler.schedule_immediate(work)
    await asyncio.wait_for(scheduler.run(), 30)
    assert done == ["finished"]
    assert [run.state for run in await ms.runs()] == ["succeeded"]
    await ms.close()


# ── 2.3.2 Implement task schedulers: one-time, recurring, delayed, immediate ──


async def test_schedule_once_executes_at_the_specific_datetime(world: World) -> None:
    async with travel(world.ms, START) as t:
        await world.scheduler.schedule_once(world.my_task, seconds(90), "globex")
        await t.advance("10m")
        assert world.ran == [(seconds(90), "globex")]


async def test_schedule_recurring_repeats_by_cron_with_seconds_first(world: World) -> None:
    async with travel(world.ms, START) as t:
        await world.scheduler.schedule_recurring(world.my_task, "*/30 * * * * *", customer="globex")
        await t.advance("2m")
        assert world.ran == [(seconds(n), "globex") for n in (30, 60, 90, 120)]


async def test_schedule_recurring_handles_the_time_zone_of_the_scheduler() -> None:
    ms = Mainspring("memory://", tz="Europe/Berlin", lease_ttl="1h")
    ran: list[datetime] = []

    @ms.task
    async def note(ctx: Context) -> None:
        ran.append(ctx.fire_time)

    async with travel(ms, "2026-03-28T12:00Z") as t:
        await Scheduler(ms).schedule_recurring(note, "0 0 9 * * *")
        await t.advance("2d")
    assert [f"{at.astimezone(UTC):%d %H:%M}" for at in ran] == ["29 07:00", "30 07:00"]  # summer time began


async def test_schedule_delayed_executes_after_the_duration(world: World) -> None:
    async with travel(world.ms, START) as t:
        await world.scheduler.schedule_delayed(world.my_task, "1m30s")
        await t.advance("10m")
        assert world.ran == [(seconds(90), "acme")]


async def test_schedule_immediate_executes_as_soon_as_possible(world: World) -> None:
    async with travel(world.ms, START) as t:
        await world.scheduler.schedule_immediate(world.my_task)
        await t.settle()
        assert world.ran == [(START, "acme")]


async def test_the_same_recurring_task_at_every_start_is_one_schedule(world: World) -> None:
    again, task = world.scheduler.schedule_recurring, world.my_task
    async with travel(world.ms, START):
        first = await again(task, "0 0 * * * *", "globex")
        assert await again(task, "0 0 * * * *", customer="globex") == first
        others = {await again(task, "0 0 * * * *"), await again(task, "0 30 * * * *", "globex")}
        assert first not in others
        assert len(await world.ms.schedules()) == 3


async def test_options_of_a_call_stay(world: World) -> None:
    async with travel(world.ms, START):
        urgent = world.my_task.using(priority="critical")
        task_id = await world.scheduler.schedule_delayed(urgent, "1m")
        assert (await world.ms.find_by_id(task_id)).priority == "critical"


# ── 2.3.3 cancel ──


async def test_cancel_stops_a_one_time_task(world: World) -> None:
    async with travel(world.ms, START) as t:
        once = await world.scheduler.schedule_once(world.my_task, seconds(60))
        delayed = await world.scheduler.schedule_delayed(world.my_task, "1m")
        for task_id in (once, delayed):
            await world.scheduler.cancel(task_id, reason="not needed")
            await world.scheduler.cancel(task_id)  # again: nothing more to do
        await t.advance("10m")
        assert world.ran == []
        runs = await t.runs()
        assert [(run.state, run.reason) for run in runs] == [("cancelled", "not needed")] * 2


async def test_cancel_stops_future_executions_of_a_recurring_task(world: World) -> None:
    async with travel(world.ms, START) as t:
        task_id = await world.scheduler.schedule_recurring(world.my_task, "0 * * * * *")
        await t.advance("150s")
        await world.scheduler.cancel(task_id, reason="enough")
        await t.advance("1h")
        assert [at for at, _ in world.ran] == [seconds(60), seconds(120)]
        await world.scheduler.cancel(task_id)  # again: nothing more to do
        assert await world.ms.schedules() == []


async def test_cancel_asks_what_runs_to_stop(world: World) -> None:
    @world.ms.task
    async def long() -> None:
        await asyncio.sleep(250)

    async with travel(world.ms, START) as t:
        once = await world.scheduler.schedule_immediate(long)
        recurring = await world.scheduler.schedule_recurring(long, "30 * * * * *")
        await t.advance("30s")
        for task_id in (once, recurring):
            await world.scheduler.cancel(task_id, reason="stop it")
        await t.advance("1s")
        assert [(run.state, run.reason) for run in await t.runs()] == [("cancelled", "stop it")] * 2


async def test_cancel_of_an_unknown_id_says_so(world: World) -> None:
    async with travel(world.ms, START):
        with pytest.raises(UnknownTask, match="task_id: nothing was scheduled under 'nothing'"):
            await world.scheduler.cancel("nothing")


# ── 3.1 event types, with their fields ──


async def observed(world: World, *kinds: type[TaskEvent]) -> list[TaskEvent]:
    seen: list[TaskEvent] = []
    for kind in kinds:
        world.scheduler.on_event(kind, seen.append)
    return seen


async def test_event_scheduled_started_completed_carry_their_fields(world: World) -> None:
    seen = await observed(world, TaskEvent)
    async with travel(world.ms, START) as t:
        task_id = await world.scheduler.schedule_delayed(world.my_task, "60s", "globex")
        await t.advance("2m")
    scheduled, started, completed = seen
    assert scheduled == TaskScheduled(
        task_id=task_id, run_id=task_id, task_type="my_task", scheduled_at=START, run_at=seconds(60)
    )
    assert isinstance(started, TaskStarted)
    assert isinstance(completed, TaskCompleted)
    assert (started.task_id, started.started_at) == (task_id, seconds(60))
    assert started.worker_id == completed.worker_id != ""
    assert (completed.completed_at, completed.duration_ms, completed.result) == (seconds(60), 0, "GLOBEX")


async def test_event_failed_and_retrying_carry_their_fields(world: World) -> None:
    seen = await observed(world, TaskEvent)
    async with travel(world.ms, START) as t:
        task_id = await world.scheduler.schedule_immediate(world.failing)
        await t.advance("1m")
    first, retrying, last = (event for event in seen if isinstance(event, TaskFailed | TaskRetrying))
    assert isinstance(first, TaskFailed)
    assert isinstance(last, TaskFailed)
    assert (first.error, first.failed_at, first.retry_count, first.will_retry) == (
        "ValueError: no luck",
        START,
        0,
        True,
    )
    assert retrying == TaskRetrying(task_id=task_id, run_id=task_id, attempt=1, next_attempt_at=seconds(10))
    assert (last.failed_at, last.retry_count, last.will_retry) == (seconds(10), 1, False)


async def test_event_cancelled_carries_its_reason_for_once_and_for_recurring(world: World) -> None:
    seen = await observed(world, TaskCancelled)
    async with travel(world.ms, START) as t:
        once = await world.scheduler.schedule_delayed(world.my_task, "1m")
        recurring = await world.scheduler.schedule_recurring(world.my_task, "0 0 * * * *")
        await world.scheduler.cancel(once, reason="too late")
        await world.scheduler.cancel(recurring, reason="too often")
        await t.settle()
    assert seen == [
        TaskCancelled(task_id=once, run_id=once, cancelled_at=START, reason="too late"),
        TaskCancelled(task_id=recurring, run_id=None, cancelled_at=START, reason="too often"),
    ]


async def test_events_of_a_recurring_task_carry_the_id_that_was_answered(world: World) -> None:
    seen = await observed(world, TaskCompleted)
    async with travel(world.ms, START) as t:
        task_id = await world.scheduler.schedule_recurring(world.my_task, "0 * * * * *")
        await t.advance("2m")
    assert [event.task_id for event in seen] == [task_id, task_id]
    assert len({event.run_id for event in seen}) == 2


async def test_a_schedule_that_came_to_its_end_was_not_cancelled(world: World) -> None:
    seen = await observed(world, TaskCancelled)
    async with travel(world.ms, START) as t:
        await world.ms.schedule("s", world.my_task, at=seconds(5), terminal="delete")
        await t.advance("1m")
    assert seen == []


# ── 3.2 event bus ──


async def test_on_event_example_task_started_logging_handler_task_failed_alert_handler(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class AlertHandler:
        def __init__(self) -> None:
            self.alerts: list[str] = []

        async def handle(self, event: TaskFailed) -> None:
            await asyncio.sleep(0)
            self.alerts.append(event.error)

    alert = AlertHandler()
    world.scheduler.on_event(TaskStarted, LoggingHandler())
    world.scheduler.on_event(TaskFailed, alert)
    with caplog.at_level(logging.INFO, "mainspring.events"):
        async with travel(world.ms, START) as t:
            task_id = await world.scheduler.schedule_immediate(world.failing)
            await t.advance("1m")
    assert alert.alerts == ["ValueError: no luck"] * 2
    lines = [record.message for record in caplog.records if record.name == "mainspring.events"]
    assert [line.split(" worker_id")[0] for line in lines] == [f"TaskStarted {task_id} run_id={task_id}"] * 2


async def test_many_subscribers_for_one_event_type_and_a_failing_one_harms_no_other(world: World) -> None:
    async def bad(event: TaskCompleted) -> None:
        raise RuntimeError("subscriber")

    first, second = [], []
    world.scheduler.on_event(TaskCompleted, first.append)
    world.scheduler.on_event(TaskCompleted, bad)
    world.scheduler.on_event(TaskCompleted, second.append)
    async with travel(world.ms, START) as t:
        await world.scheduler.schedule_immediate(world.my_task)
        await t.settle()
        assert len(first) == len(second) == 1
        assert await world.ms.events(types=["SubscriberFailed"])


async def test_logging_handler_tells_failures_from_the_rest(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.scheduler.on_event(TaskEvent, LoggingHandler(logging.getLogger("mine")))
    with caplog.at_level(logging.INFO, "mine"):
        async with travel(world.ms, START) as t:
            await world.scheduler.schedule_immediate(world.failing)
            await t.advance("1m")
    levels = [(record.message.split()[0], record.levelname) for record in caplog.records if record.name == "mine"]
    assert levels == [
        ("TaskScheduled", "INFO"),
        ("TaskStarted", "INFO"),
        ("TaskFailed", "WARNING"),
        ("TaskRetrying", "WARNING"),
        ("TaskStarted", "INFO"),
        ("TaskFailed", "ERROR"),
    ]


# ── bad input: a clear error, and nothing is stored ──


def elsewhere() -> Any:
    other = Mainspring("memory://")

    @other.task
    async def my_tasks() -> None: ...

    return my_tasks


BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("past time", lambda w: w.scheduler.schedule_once(w.my_task, seconds(-1)), InvalidInput, "at: .* in the past"),
    (
        "time without a zone",
        lambda w: w.scheduler.schedule_once(w.my_task, datetime(2030, 1, 1)),
        NaiveDatetime,
        "at: .* has no time zone. Add one",
    ),
    ("a text", lambda w: w.scheduler.schedule_once(w.my_task, "soon"), InvalidInput, "at: 'soon' is not a time"),
    (
        "negative delay",
        lambda w: w.scheduler.schedule_delayed(w.my_task, timedelta(seconds=-1)),
        InvalidDuration,
        "delay: .* is negative",
    ),
    ("bad cron", lambda w: w.scheduler.schedule_recurring(w.my_task, "0 0 25 * * *"), InvalidCron, "hour: .*25"),
    ("no cron", lambda w: w.scheduler.schedule_recurring(w.my_task, 7), InvalidInput, "trigger: "),
    (
        "wrong argument",
        lambda w: w.scheduler.schedule_recurring(w.my_task, "0 0 * * * *", 7),
        WrongArguments,
        "customer: Expected `str`",
    ),
    ("too many", lambda w: w.scheduler.schedule_delayed(w.my_task, 1, "a", "b"), WrongArguments, "too many positional"),
    (
        "a task of another app",
        lambda w: w.scheduler.schedule_immediate(elsewhere()),
        UnknownTask,
        "task: 'my_tasks' is not a task of this app. Did you mean 'my_task'?",
    ),
    (
        "a plain function",
        lambda w: w.scheduler.schedule_delayed(seconds, 1),
        UnknownTask,
        "task: 'seconds' is not a task of this app. Register the function",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
async def test_bad_input_is_refused_and_nothing_is_stored(
    world: World, call: Any, error: type[Exception], text: str
) -> None:
    async with travel(world.ms, START) as t:
        with pytest.raises(error, match=text):
            await call(world)
        assert await stored(t) == ([], [])


def test_on_event_of_something_else_is_refused(world: World) -> None:
    with pytest.raises(InvalidInput, match=r"handler: 7 handles no events. Give a function, or an object with handle"):
        world.scheduler.on_event(TaskFailed, 7)  # type: ignore[arg-type]  # that is what is refused
    with pytest.raises(InvalidInput, match=r"event: .* is not an event of a task. Use TaskScheduled, "):
        world.scheduler.on_event(int, print)  # type: ignore[type-var]  # that is what is refused
