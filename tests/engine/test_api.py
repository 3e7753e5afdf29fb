"""The Python door: tasks, handles, options, schedules, queries, events, dependencies, running."""

# ruff: noqa: B008 - a dependency is a default value

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from mainspring import (
    Cancel,
    Context,
    Depends,
    LoggingHandler,
    Mainspring,
    Priority,
    ResultTimeout,
    Retry,
    RunHandle,
    RunNotSuccessful,
    Schedule,
    Snooze,
    State,
)
from mainspring.model.errors import DuplicateTask, IllegalTransition, UnknownRun, UnknownSchedule
from mainspring.model.events import (
    CancelRequested,
    Event,
    FiresElided,
    RunCancelled,
    RunEvent,
    RunFailed,
    RunRetrying,
    RunScheduled,
    RunStarted,
    RunSucceeded,
    ScheduleCreated,
    SchedulePaused,
    ScheduleUpdated,
    SubscriberFailed,
)
from mainspring.model.trigger import CronSpec
from mainspring.testing import inline, travel

WAIT = "20s"
START = "2026-03-02T08:00:00Z"  # a Monday

Make = Callable[..., Mainspring]


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/x.db"


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    made: list[Mainspring] = []

    def build(**options: Any) -> Mainspring:
        made.append(Mainspring(url, **options))
        return made[-1]

    yield build
    for app in made:
        app.sync.close()
        app._engine.stop()


@pytest.fixture
def ms(make: Make) -> Mainspring:
    return make()


@asynccontextmanager
async def beside(app: Mainspring) -> AsyncIterator[Mainspring]:
    """The real engine on its own thread, beside the test."""
    async with app.running():
        yield app


# ── tasks and handles ──────────────────────────────────────────────────────


async def test_a_task_runs_and_its_handle_tells(ms: Mainspring) -> None:
    @ms.task
    async def add(a: int, b: int = 2) -> int:
        return a + b

    async with beside(ms):
        handle = await add.enqueue(1, b=4)
        assert await handle.result(timeout=WAIT) == 5
        assert await handle.state() is State.SUCCEEDED
        assert handle.created
        assert (await ms.find_by_id(handle.id)).attempt == 1
        assert handle.id in repr(handle)


async def test_decorators_work_with_and_without_parentheses(ms: Mainspring) -> None:
    @ms.task
    def bare() -> str:
        return "bare"

    @ms.task()
    def empty() -> str:
        return "empty"

    @ms.task(name="other", priority="high")
    def named() -> str:
        return "named"

    assert (bare.name, empty.name, named.name) == ("bare", "empty", "other")
    async with beside(ms):
        handles = [await bare.enqueue(), await empty.enqueue(), await named.enqueue()]
        assert [await h.result(timeout=WAIT) for h in handles] == ["bare", "empty", "named"]
        assert (await handles[2].run()).priority == Priority.HIGH


async def test_a_plain_call_stays_a_plain_call(ms: Mainspring) -> None:
    @ms.task
    def double(n: int) -> int:
        return 2 * n

    @ms.task
    async def triple(ctx: Context, n: int) -> int:
        return 3 * n

    assert double(4) == 8
    assert await triple(None, 4) == 12
    assert double.__name__ == "double"


def test_the_bare_name_is_the_default_name_and_two_of_one_name_are_an_error(ms: Mainspring) -> None:
    def outer() -> Callable[[], None]:
        def send() -> None: ...

        return send

    assert ms.task(outer()).name == "send"
    with pytest.raises(DuplicateTask, match=r"name: a task called 'send' is registered already\. Give one of them"):
        ms.task(outer())


async def test_the_context_is_the_first_parameter_or_one_named_ctx(make: Make) -> None:
    ms = make(deps={"pool": "p"})
    seen: dict[str, Any] = {}

    @ms.task
    async def first(context: Context, n: int) -> None:
        seen["first"] = (context.run_id, context.attempt, str(context.tz), context.deps, n)

    @ms.task
    def by_name(n: int, ctx: Any) -> None:
        seen["by_name"] = (ctx.run_id, ctx.idempotency_key, ctx.fire_time, n)

    async with beside(ms):
        one, two = await first.enqueue(7), await by_name.enqueue(8)
        await one.result(timeout=WAIT)
        await two.result(timeout=WAIT)
    assert seen["first"] == (one.id, 1, "UTC", {"pool": "p"}, 7)
    run_id, key, fire_time, n = seen["by_name"]
    assert (run_id, key, n) == (two.id, two.id, 8)
    assert fire_time.tzinfo is not None


async def test_the_context_of_a_fire_knows_its_zone_and_time(ms: Mainspring) -> None:
    seen: list[tuple[str, str, int]] = []

    @ms.cron("0 10 * * *", tz="Europe/Berlin")
    async def report(ctx: Context) -> None:
        seen.append((ctx.fire_time.isoformat(), str(ctx.tz), ctx.attempt))
        assert ctx.scheduled_at == ctx.fire_time
        assert ctx.schedule_id is not None

    async with travel(ms, START) as t:
        await t.advance("2h")
    assert seen == [("2026-03-02T10:00:00+01:00", "Europe/Berlin", 1)]


async def test_the_idempotency_key_is_the_same_for_every_attempt(ms: Mainspring) -> None:
    seen: list[tuple[str, int]] = []

    @ms.task(retry=Retry(max_attempts=3, initial="1s"))
    async def flaky(ctx: Context) -> str:
        seen.append((ctx.idempotency_key, ctx.attempt))
        if ctx.attempt < 3:
            raise OSError("not yet")
        return "done"

    async with travel(ms, START) as t:
        handle = await flaky.enqueue()
        await t.advance("1m")
        assert await handle.result() == "done"
    assert seen == [(handle.id, 1), (handle.id, 2), (handle.id, 3)]


@dataclass
class Order:
    customer: str
    on: date


async def test_arguments_and_results_have_their_annotated_types(ms: Mainspring) -> None:
    seen: list[Any] = []

    @ms.task
    def book(order: Order, at: datetime) -> Order:
        seen.extend([order, at])
        return Order(order.customer.upper(), order.on + timedelta(days=1))

    @ms.task
    async def tomorrow(day: date) -> date:
        return day + timedelta(days=1)

    at = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
    async with beside(ms):
        booked = await book.enqueue(Order("acme", date(2026, 3, 2)), at=at)
        assert await booked.result(timeout=WAIT) == Order("ACME", date(2026, 3, 3))
        assert await (await tomorrow.enqueue(date(2026, 2, 28))).result(timeout=WAIT) == date(2026, 3, 1)
    assert seen == [Order("acme", date(2026, 3, 2)), at]


async def test_star_arguments_keep_their_places(ms: Mainspring) -> None:
    @ms.task
    async def collect(first: int, /, *rest: int, **named: str) -> list[Any]:
        return [first, list(rest), named]

    async with beside(ms):
        handle = await collect.enqueue(1, 2, 3, x="y")
        assert await handle.result(timeout=WAIT) == [1, [2, 3], {"x": "y"}]


async def test_a_failed_run_raises_with_its_error(ms: Mainspring) -> None:
    @ms.task(retry=Retry(max_attempts=1))
    async def fail() -> None:
        raise LookupError("no such customer")

    async with beside(ms):
        handle = await fail.enqueue()
        with pytest.raises(RunNotSuccessful, match="ended as failed: LookupError: no such customer") as caught:
            await handle.result(timeout=WAIT)
        assert (caught.value.run_id, caught.value.state) == (handle.id, "failed")
        run = await handle.run()
        assert (run.dead, run.failures, run.reason) == (True, 1, "error")


async def test_waiting_too_long_for_a_result(ms: Mainspring) -> None:
    @ms.task
    async def never() -> None: ...

    handle = await never.enqueue()  # nobody runs it
    with pytest.raises(ResultTimeout, match=f"run {handle.id} did not end within 30ms"):
        await handle.result(timeout="30ms")
    assert await handle.state() is State.WAITING


async def test_an_unknown_run_is_said_so(ms: Mainspring) -> None:
    with pytest.raises(UnknownRun, match="no run has the id 'nope'"):
        await ms.find_by_id("nope")
    with pytest.raises(UnknownRun):
        await ms.cancel("nope")


async def test_snooze_and_cancel_as_answers(ms: Mainspring) -> None:
    calls = 0

    @ms.task(retry=Retry(max_attempts=1))
    async def later() -> Snooze | str:
        nonlocal calls
        calls += 1
        return Snooze("10m") if calls == 1 else "now"

    @ms.task
    async def unwanted() -> Cancel:
        return Cancel("the order is gone")

    async with travel(ms, START) as t:
        one, two = await later.enqueue(), await unwanted.enqueue()
        await t.settle()
        assert await one.state() is State.WAITING
        assert (await two.run()).reason == "the order is gone"
        assert await two.state() is State.CANCELLED
        await t.advance("9m")
        assert calls == 1
        await t.advance("1m")
        assert await one.result() == "now"
        assert (await one.run()).failures == 0


# ── where enqueueing works ─────────────────────────────────────────────────


async def test_enqueue_before_run(ms: Mainspring) -> None:
    @ms.task
    async def hello() -> str:
        return "hi"

    handle = await hello.enqueue()
    assert await handle.state() is State.WAITING
    async with beside(ms):
        assert await handle.result(timeout=WAIT) == "hi"


def test_enqueue_from_successive_loops_then_run_until_idle(ms: Mainspring) -> None:
    @ms.task
    async def square(n: int) -> int:
        return n * n

    one = asyncio.run(square.enqueue(3))
    two = asyncio.run(square.enqueue(4))
    assert asyncio.run(one.state()) is State.WAITING
    ms.run(until_idle=True)
    # also after run() has returned, the handles answer
    assert (asyncio.run(one.result(timeout=WAIT)), asyncio.run(two.result(timeout=WAIT))) == (9, 16)


async def test_enqueue_without_run_is_seen_by_another_object_on_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    producer, consumer = Mainspring(url), Mainspring(url, poll_interval="100ms")

    def work(n: int) -> int:
        return n + 1

    mine, theirs = producer.task(work), consumer.task(work)
    assert mine.name == theirs.name
    before = await mine.enqueue(1)
    async with beside(consumer):
        during = await mine.enqueue(2)  # woken through the file
        assert [await before.result(timeout=WAIT), await during.result(timeout=WAIT)] == [2, 3]
    assert {run.id for run in await producer.runs(state="succeeded")} == {before.id, during.id}
    await producer.close()


async def test_enqueue_from_other_threads_while_running(ms: Mainspring) -> None:
    @ms.task
    async def echo(n: int) -> int:
        return n

    handles: list[Any] = []

    def produce(n: int) -> None:
        handles.append(asyncio.run(echo.enqueue(n)))

    async with beside(ms):
        threads = [threading.Thread(target=produce, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert sorted([await handle.result(timeout=WAIT) for handle in handles]) == list(range(8))


async def test_a_handler_may_enqueue(ms: Mainspring) -> None:
    @ms.task
    async def child(n: int) -> int:
        return n * 10

    @ms.task
    async def parent() -> str:
        return (await child.enqueue(4)).id

    @ms.task
    def threaded() -> int:
        return child.sync.enqueue(5).result(timeout=WAIT)

    async with beside(ms):
        child_id = await (await parent.enqueue()).result(timeout=WAIT)
        assert await (await threaded.enqueue()).result(timeout=WAIT) == 50
        assert await RunHandle(child_id, ms.call, child.signature.result).result(timeout=WAIT) == 40


async def test_inline_mode_returns_after_the_run(ms: Mainspring) -> None:
    @ms.task
    def work(n: int) -> int:
        return n + 1

    async with inline(ms):
        handle = await work.enqueue(1)
        assert await handle.state() is State.SUCCEEDED
        assert await handle.result() == 2


# ── options of a call ──────────────────────────────────────────────────────


async def test_a_unique_key_answers_with_the_open_run(ms: Mainspring) -> None:
    @ms.task
    async def sync_customer(name: str) -> str:
        return name

    once = sync_customer.using(unique="acme")
    first = await once.enqueue("acme")
    again = await once.enqueue("acme again")
    other = await sync_customer.using(unique="globex").enqueue("globex")
    assert (first.created, again.created, other.created) == (True, False, True)
    assert again.id == first.id
    many = await once.enqueue_many([("x",), ("y",)])
    assert [(h.id, h.created) for h in many] == [(first.id, False), (first.id, False)]
    assert len(await ms.runs()) == 2
    async with beside(ms):
        assert await again.result(timeout=WAIT) == "acme"
        # ended: the key is free again
        fresh = await once.enqueue("acme")
        assert fresh.created
        assert fresh.id != first.id
        await fresh.result(timeout=WAIT)


async def test_delay_and_at(ms: Mainspring) -> None:
    ran: list[str] = []

    @ms.task
    async def note(what: str) -> None:
        ran.append(what)

    async with travel(ms, START) as t:
        await note.using(delay="10m").enqueue("delayed")
        await note.using(at=datetime(2026, 3, 2, 8, 5, tzinfo=UTC)).enqueue("at")
        await note.using(at=datetime(2026, 3, 2, 7, 0, tzinfo=UTC)).enqueue("past")
        await t.settle()
        assert ran == ["past"]
        await t.advance("5m")
        assert ran == ["past", "at"]
        await t.advance("4m59s")
        assert ran == ["past", "at"]
        await t.advance("1s")
        assert ran == ["past", "at", "delayed"]


async def test_critical_runs_before_low(make: Make) -> None:
    ms = make(concurrency=1)
    order: list[str] = []
    free = asyncio.Event()

    @ms.task
    async def occupy() -> None:
        await free.wait()

    @ms.task
    async def work(what: str) -> None:
        order.append(what)

    async with travel(ms, START) as t:
        await occupy.enqueue()
        await t.settle()
        for level in ("low", "normal", "high", "critical"):
            await work.using(priority=level).enqueue(level)
        await work.using(priority=0).enqueue("critical 2")
        free.set()
        await t.settle()
    assert order == ["critical", "critical 2", "high", "normal", "low"]


async def test_enqueue_many_is_one_commit(ms: Mainspring) -> None:
    @ms.task
    async def work(customer: str, copies: int = 1) -> str:
        return customer * copies

    handles = await work.enqueue_many([("a",), ("b", 3), {"customer": "c", "copies": 2}])
    events = await ms.events(types=[RunScheduled])
    assert [event.run_id for event in events] == [handle.id for handle in handles]
    assert len({event.change for event in events}) == 1
    assert await work.enqueue_many([]) == []
    async with beside(ms):
        assert [await handle.result(timeout=WAIT) for handle in handles] == ["a", "bbb", "cc"]


async def test_a_thousand_at_once_are_one_commit_and_more_are_chunks(ms: Mainspring) -> None:
    @ms.task
    async def work(n: int) -> None: ...

    handles = await work.enqueue_many((n,) for n in range(1_500))
    events = await ms.events(types=[RunScheduled], limit=2_000)
    assert len({handle.id for handle in handles}) == len(events) == 1_500
    assert len({event.change for event in events}) == 2


async def test_a_call_has_its_own_retry_timeout_and_queue(make: Make) -> None:
    ms = make(queues=["default", "mail"])
    attempts = 0

    @ms.task
    async def work() -> None:
        nonlocal attempts
        attempts += 1
        raise OSError("down")

    special = work.using(retry=Retry(max_attempts=2, initial="1s"), timeout="7s", queue="mail", recovery="fail")
    async with travel(ms, START) as t:
        handle = await special.enqueue()
        await t.advance("1m")
        run = await handle.run()
        assert (run.state, run.lane, attempts) == (State.FAILED, "default/mail", 2)
        assert run.options is not None
        assert (run.options.timeout, run.options.recovery) == (7_000, "fail")


# ── cancelling, retrying ───────────────────────────────────────────────────


async def test_cancel_a_waiting_run(ms: Mainspring) -> None:
    @ms.task
    async def work() -> None: ...

    handle = await work.using(delay="1h").enqueue()
    run = await ms.cancel(handle.id, reason="changed my mind")
    assert (run.state, run.reason) == (State.CANCELLED, "changed my mind")
    with pytest.raises(RunNotSuccessful, match="ended as cancelled: changed my mind"):
        await handle.result(timeout=WAIT)
    # again changes nothing
    count = len(await ms.events())
    assert (await ms.cancel(handle.id, reason="once more")).reason == "changed my mind"
    assert len(await ms.events()) == count


async def test_cancel_a_running_coroutine(ms: Mainspring) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    @ms.task
    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    async with beside(ms):
        handle = await forever.enqueue()
        await began.wait()
        assert (await ms.cancel(handle.id, reason="enough")).state is State.RUNNING
        with pytest.raises(RunNotSuccessful, match="ended as cancelled: enough"):
            await handle.result(timeout=WAIT)
        assert stopped.is_set()
        types = [type(event) for event in await ms.events(run=handle.id)]
        assert types == [RunScheduled, RunStarted, CancelRequested, RunCancelled]


async def test_cancel_a_running_thread(ms: Mainspring) -> None:
    began = threading.Event()

    @ms.task
    def forever(ctx: Context) -> str:
        began.set()
        assert ctx._attempt.cancelled.wait(20)
        return f"cancelled: {ctx.cancelled}"

    async with beside(ms):
        handle = await forever.enqueue()
        await asyncio.to_thread(began.wait)
        await ms.cancel(handle.id, reason="enough")
        with pytest.raises(RunNotSuccessful, match="ended as cancelled: enough"):
            await handle.result(timeout=WAIT)


async def test_retry_of_a_failed_run_keeps_the_row(ms: Mainspring) -> None:
    works = False

    @ms.task(retry=Retry(max_attempts=1))
    async def work() -> str:
        if not works:
            raise OSError("down")
        return "up"

    async with beside(ms):
        handle = await work.enqueue()
        with pytest.raises(RunNotSuccessful):
            await handle.result(timeout=WAIT)
        works = True
        reopened = await ms.retry(handle.id)
        assert (reopened.id, reopened.failures, reopened.error) == (handle.id, 0, None)
        assert await handle.result(timeout=WAIT) == "up"
        assert (await handle.run()).attempt == 2
        with pytest.raises(IllegalTransition, match="is succeeded: RunReopened is not possible"):
            await ms.retry(handle.id)


# ── schedules ──────────────────────────────────────────────────────────────


@pytest.fixture
def clocked(make: Make) -> Mainspring:
    ms = make()

    @ms.task
    async def report(customer: str = "nobody", copies: int = 1) -> str:
        return customer * copies

    return ms


async def test_schedules_are_made_read_and_listed(clocked: Mainspring) -> None:
    ms = clocked
    async with travel(ms, START) as t:
        made = await ms.schedule("nightly", "report", cron="0 2 * * *", args=("acme",), tz="Europe/Berlin")
        await ms.schedule("often", ms.tasks["report"], every="10m", kwargs={"copies": 2})
        await ms.schedule("soon", ms.tasks["report"].function, delay="1m")
        await ms.schedule("fixed", "report", at=[datetime(2026, 3, 2, 8, 30, tzinfo=UTC)])
        assert await ms.get("nightly") == made == await ms.get(made.id)
        assert (made.revision, made.spec.tz, made.state) == (1, "Europe/Berlin", "active")
        await t.advance("31m")
        names = {schedule.name: schedule.state for schedule in await ms.schedules()}
        assert names == {"nightly": "active", "often": "active", "soon": "finished", "fixed": "finished"}
        assert {s.name for s in await ms.schedules(enabled=True)} == {"nightly", "often"}
        assert {s.name for s in await ms.schedules(enabled=False)} == {"soon", "fixed"}
        assert [r.result for r in await t.runs("often")] == ['"nobodynobody"'] * 3
        assert [at.minute for at in await t.fires("often")] == [10, 20, 30]
        assert [r.result for r in await t.runs("soon")] == ['"nobody"']
        page = await ms.schedules(limit=2)
        rest = await ms.schedules(limit=10, after=page[-1].id)
        assert [s.id for s in page + rest] == [s.id for s in await ms.schedules()]


async def test_an_unknown_schedule_is_answered_with_the_nearest(clocked: Mainspring) -> None:
    await clocked.schedule("nightly", "report", cron="0 2 * * *")
    with pytest.raises(UnknownSchedule, match=r"no schedule is called 'nightli'\. Did you mean 'nightly'\?"):
        await clocked.pause("nightli")


def cron_of(schedule: Schedule) -> tuple[str, str]:
    assert isinstance(schedule.spec.trigger, CronSpec)
    return schedule.spec.trigger.expr, schedule.spec.trigger.tz


async def test_update_of_one_field_keeps_the_others(clocked: Mainspring) -> None:
    ms = clocked
    before = await ms.schedule(
        "nightly",
        "report",
        cron="0 2 * * *",
        tz="Europe/Berlin",
        args=("acme",),
        missed="skip",
        grace="5m",
        overlap="queue_one",
        priority="high",
        max_runs=9,
        timeout="11s",
        retry=Retry(max_attempts=7),
        start_deadline="1h",
    )
    after = await ms.update("nightly", grace="10m")
    assert after.revision == 2
    changed = {name for name in after.spec.__struct_fields__ if getattr(after.spec, name) != getattr(before.spec, name)}
    assert changed == {"grace"}
    (event,) = await ms.events(schedule="nightly", types=[ScheduleUpdated])
    assert isinstance(event, ScheduleUpdated)
    assert event.changed == ("grace",)
    # an option of the run
    after = await ms.update("nightly", timeout="12s")
    assert after.spec.options is not None
    assert before.spec.options is not None
    assert after.spec.options.timeout == 12_000
    assert after.spec.options.retry == before.spec.options.retry
    assert after.spec.options.start_deadline == 3_600_000
    # the trigger alone keeps its zone; the payload alone keeps the trigger
    after = await ms.update("nightly", cron="30 3 * * *")
    assert (after.spec.tz, cron_of(after)) == ("Europe/Berlin", ("30 3 * * *", "Europe/Berlin"))
    assert after.spec.body == before.spec.body
    after = await ms.update("nightly", args=("globex",))
    assert after.spec.body != before.spec.body
    assert cron_of(after) == ("30 3 * * *", "Europe/Berlin")
    after = await ms.update("nightly", tz="Asia/Tokyo")
    assert (after.spec.tz, cron_of(after)) == ("Asia/Tokyo", ("30 3 * * *", "Asia/Tokyo"))
    assert after.revision == 6
    # None takes a limit away; nothing new writes nothing
    after = await ms.update("nightly", max_runs=None)
    assert (after.spec.max_runs, after.revision) == (None, 7)
    assert (await ms.update("nightly", grace="10m")).revision == 7


async def test_an_update_needs_no_arguments_again(ms: Mainspring) -> None:
    @ms.task
    async def send(customer: str) -> str:
        return customer

    before = await ms.schedule("nightly", send, cron="0 2 * * *", args=("acme",))
    after = await ms.update("nightly", grace="5m")
    assert (after.spec.grace, after.spec.body) == (300_000, before.spec.body)


async def test_answers_carry_what_the_store_filled_in(clocked: Mainspring) -> None:
    ms = clocked
    made = await ms.schedule("nightly", "report", cron="0 2 * * *")
    assert made.created_at > 0
    handle = await ms.tasks["report"].enqueue()
    cancelled = await ms.cancel(handle.id)
    assert cancelled == await handle.run()
    assert cancelled.ended_at


async def test_two_updates_at_once_both_hold(clocked: Mainspring) -> None:
    ms = clocked
    await ms.schedule("nightly", "report", cron="0 2 * * *")
    await asyncio.gather(ms.update("nightly", grace="10m"), ms.update("nightly", missed="skip"))
    spec = (await ms.get("nightly")).spec
    assert (spec.grace, spec.missed) == (600_000, "skip")


async def test_an_update_affects_only_later_fires(clocked: Mainspring) -> None:
    ms = clocked
    async with travel(ms, START) as t:
        await ms.schedule("often", "report", cron="*/10 * * * *", args=("old",))
        await t.advance("15m")
        await ms.update("often", args=("new",))
        await t.advance("10m")
        assert [(r.revision, r.result) for r in await t.runs("often")] == [(1, '"old"'), (2, '"new"')]


async def test_pause_with_until_and_resume(clocked: Mainspring) -> None:
    ms = clocked
    async with travel(ms, START) as t:
        await ms.schedule("often", "report", cron="*/10 * * * *", missed="skip", grace="1s")
        await t.advance("10m")
        paused = await ms.pause("often", reason="migration", until=t.now + timedelta(minutes=25))
        assert (paused.state, paused.reason) == ("paused", "migration")
        await t.advance("20m")
        assert len(await t.runs("often")) == 1
        await t.advance("20m")
        assert [at.minute for at in await t.fires("often")] == [10, 40, 50]
        (span,) = [e for e in await ms.events(schedule="often") if isinstance(e, FiresElided)]
        assert (span.count, span.reason) == (2, "paused")
        (note,) = [e for e in await ms.events(schedule="often") if isinstance(e, SchedulePaused)]
        assert note.reason == "migration"
        # by hand
        await ms.pause("often")
        assert [s.name for s in await ms.schedules(enabled=False)] == ["often"]
        resumed = await ms.resume("often")
        assert resumed.state == "active"


async def test_trigger_now_and_with_other_arguments(clocked: Mainspring) -> None:
    ms = clocked
    await ms.schedule("nightly", "report", cron="0 2 * * *", args=("acme",))
    async with beside(ms):
        own = await ms.trigger("nightly")
        other = await ms.trigger("nightly", args=("globex",), kwargs={"copies": 2})
        assert await own.result(timeout=WAIT) == "acme"
        assert await other.result(timeout=WAIT) == "globexglobex"
        runs = await ms.runs(schedule="nightly")
        assert {(run.id, run.origin) for run in runs} == {(own.id, "trigger"), (other.id, "trigger")}
        assert (await ms.get("nightly")).revision == 1


async def test_delete_cancels_what_waits_with_a_reason(clocked: Mainspring) -> None:
    ms = clocked
    schedule = await ms.schedule("nightly", "report", cron="0 2 * * *")
    handle = await ms.trigger("nightly")
    await ms.delete("nightly", reason="not needed")
    run = await handle.run()
    assert (run.state, run.reason) == (State.CANCELLED, "the schedule was deleted")
    assert await ms.schedules() == []
    with pytest.raises(UnknownSchedule):
        await ms.get("nightly")
    with pytest.raises(UnknownSchedule):
        await ms.trigger(schedule.id)
    # the name is free again, the history stays
    again = await ms.schedule("nightly", "report", cron="0 3 * * *")
    assert again.id != schedule.id
    assert (await ms.find_by_id(handle.id)).schedule_id == schedule.id


async def test_declared_schedules_of_every_kind(ms: Mainspring) -> None:
    ran: list[str] = []

    @ms.cron("0 9 * * *", name="morning")
    async def one() -> None:
        ran.append("cron")

    @ms.every("30m", args=("x",))
    async def two(what: str) -> None:
        ran.append(f"every {what}")

    @ms.at(datetime(2026, 3, 2, 8, 45, tzinfo=UTC), kwargs={"what": "y"})
    def three(what: str) -> None:
        ran.append(f"at {what}")

    @ms.cron("30 9 * * *")
    @ms.task(name="renamed")
    async def four() -> None:
        ran.append("four")

    async with travel(ms, START) as t:
        await t.advance("91m")
        assert {s.name for s in await ms.schedules()} == {"morning", "two", "three", "renamed"}
    # those that fire at one instant have no order among them
    assert ran[:2] == ["every x", "at y"]
    assert sorted(ran[2:4]) == ["cron", "every x"]
    assert sorted(ran[4:]) == ["every x", "four"]
    with pytest.raises(DuplicateTask, match="a schedule called 'morning' is declared already"):
        ms.cron("0 1 * * *", name="morning")(lambda: None)


# ── queries ────────────────────────────────────────────────────────────────


async def test_finding_runs(ms: Mainspring) -> None:
    @ms.task(retry=Retry(max_attempts=1))
    async def work(fails: bool = False) -> None:
        if fails:
            raise OSError("x")

    @ms.task
    async def report() -> None: ...

    async with travel(ms, START) as t:
        good, bad = await work.enqueue(), await work.enqueue(fails=True)
        await t.settle()
        await ms.schedule("often", report, cron="*/10 * * * *")
        await t.advance("25m")
        mark = t.now
        late = await work.using(delay="5m").enqueue()
        assert [r.id for r in await ms.find_by_status("failed")] == [bad.id]
        assert [r.id for r in await ms.find_by_status(State.WAITING)] == [late.id]
        assert (await ms.find_by_id(good.id)).state is State.SUCCEEDED
        assert len(await ms.runs(schedule="often", state="succeeded")) == 2
        assert {r.id for r in await ms.runs(since=mark)} == {late.id}
        assert {r.id for r in await ms.runs(task="work")} == {good.id, bad.id, late.id}
        newest = await ms.runs(limit=2)
        assert newest[0].id == late.id
        rest = await ms.runs(after=newest[-1].id)
        assert len(newest) + len(rest) == 5


async def test_finding_what_is_due_and_overdue(ms: Mainspring) -> None:
    @ms.task
    async def work() -> None: ...

    now = datetime.now(UTC)
    old = await work.using(at=now - timedelta(minutes=10)).enqueue()
    due = await work.using(at=now - timedelta(seconds=5)).enqueue()
    future = await work.using(at=now + timedelta(hours=1)).enqueue()
    assert [r.id for r in await ms.find_due()] == [old.id, due.id]
    assert [r.id for r in await ms.find_due(now + timedelta(hours=2))] == [old.id, due.id, future.id]
    assert [r.id for r in await ms.find_overdue()] == [old.id]
    assert await ms.find_overdue(by="1h") == []
    assert [r.id for r in await ms.find_due(limit=1)] == [old.id]


async def test_querying_events(clocked: Mainspring) -> None:
    ms = clocked
    async with travel(ms, START) as t:
        await ms.schedule("often", "report", cron="*/10 * * * *")
        handle = await ms.tasks["report"].enqueue()
        await t.advance("10m")
        middle = t.now
        await t.advance("10m")
        assert [type(e) for e in await ms.events(run=handle.id)] == [RunScheduled, RunStarted, RunSucceeded]
        assert [type(e) for e in await ms.events(schedule="often", types=[ScheduleCreated])] == [ScheduleCreated]
        assert len(await ms.events(schedule="often", types=["RunSucceeded"])) == 2
        assert len(await ms.events(types=[RunSucceeded])) == 3
        early = await ms.events(until=middle - timedelta(seconds=1))
        late = await ms.events(since=middle + timedelta(seconds=1))
        assert early
        assert late
        assert max(e.seq for e in early) < min(e.seq for e in late)
        every = await ms.events()
        assert [e.seq for e in every] == sorted({e.seq for e in every})
        assert await ms.events(limit=3) == every[:3]


# ── events as they happen ──────────────────────────────────────────────────


async def test_several_subscribers_typed_sync_and_async(ms: Mainspring) -> None:
    failed: list[str] = []
    several: list[str] = []
    everything: list[Event] = []

    def alert(event: RunFailed) -> None:
        failed.append(event.error)

    async def slow(event: RunEvent) -> None:
        await asyncio.sleep(0)
        several.append(type(event).__name__)

    ms.on_event(RunFailed, alert)
    ms.on_event((RunSucceeded, RunRetrying), slow)
    ms.on_event(Event, everything.append)

    @ms.task(retry=Retry(max_attempts=2, initial="1s"))
    async def work() -> None:
        raise OSError("down")

    async with travel(ms, START) as t:
        handle = await work.enqueue()
        await t.advance("1m")
    assert failed == ["OSError: down"]
    assert several == ["RunRetrying"]
    names = [type(e).__name__ for e in everything if e.run_id == handle.id]
    assert names == ["RunScheduled", "RunStarted", "RunRetrying", "RunStarted", "RunFailed"]


async def test_a_subscriber_that_comes_late_hears_the_rest(ms: Mainspring) -> None:
    heard: list[str] = []

    @ms.task
    async def work() -> None: ...

    async with travel(ms, START) as t:
        await work.enqueue()
        await t.settle()
        ms.on_event(Event, lambda event: heard.append(type(event).__name__))
        await work.enqueue()
        await t.settle()
        assert heard == ["RunScheduled", "RunStarted", "RunSucceeded"]


async def test_a_failing_subscriber_harms_nobody_and_is_noted(ms: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def broken(_: RunSucceeded) -> None:
        raise ValueError("subscriber is broken")

    ms.on_event(RunSucceeded, broken)
    ms.on_event(RunSucceeded, lambda event: heard.append(event.run_id or ""))
    ms.on_event(SubscriberFailed, broken)  # must not feed itself

    @ms.task
    async def work() -> str:
        return "fine"

    with caplog.at_level(logging.CRITICAL, "mainspring.events"):
        async with beside(ms):
            handle = await work.enqueue()
            assert await handle.result(timeout=WAIT) == "fine"
            second = await work.enqueue()
            await second.result(timeout=WAIT)
    notes = await ms.events(types=[SubscriberFailed])
    assert heard == [handle.id, second.id]
    assert [(n.run_id, n.event, n.error) for n in notes if isinstance(n, SubscriberFailed)] == [
        (handle.id, "RunSucceeded", "ValueError: subscriber is broken"),
        (second.id, "RunSucceeded", "ValueError: subscriber is broken"),
    ]


async def test_the_logging_handler(ms: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    ms.on_event(Event, LoggingHandler(logging.getLogger("my.events")))

    @ms.task(retry=Retry(max_attempts=2, initial="1s"))
    async def work() -> None:
        raise OSError("down")

    with caplog.at_level(logging.INFO, "my.events"):
        async with travel(ms, START) as t:
            handle = await work.enqueue()
            await t.advance("1m")
    lines = [(r.levelname, r.action) for r in caplog.records if getattr(r, "run_id", None) == handle.id]  # type: ignore[attr-defined]
    assert lines == [
        ("INFO", "RunScheduled"),
        ("INFO", "RunStarted"),
        ("WARNING", "RunRetrying"),
        ("INFO", "RunStarted"),
        ("ERROR", "RunFailed"),
    ]
    assert any("OSError: down" in r.getMessage() for r in caplog.records)


async def test_progress_and_log_lines(ms: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    reported, go_on = threading.Event(), threading.Event()

    @ms.task
    def work(ctx: Context) -> None:
        ctx.progress(0.5, "half way")
        ctx.log("at %d of %d", 1, 2)
        reported.set()
        assert go_on.wait(20)

    with caplog.at_level(logging.INFO, "mainspring.run"):
        async with beside(ms):
            handle = await work.enqueue()
            await asyncio.to_thread(reported.wait)
            # progress was posted to the engine's loop before this question
            run = await handle.run()
            assert (run.state, run.progress) == (State.RUNNING, "50% half way")
            go_on.set()
            await handle.result(timeout=WAIT)
            assert (await handle.run()).progress is None
    (record,) = [r for r in caplog.records if r.name == "mainspring.run"]
    assert record.getMessage() == "at 1 of 2"
    assert (record.run_id, record.task) == (handle.id, "work")  # type: ignore[attr-defined]


# ── dependencies ───────────────────────────────────────────────────────────


class Trace(list[str]):
    """What opened and closed, in order."""


async def test_dependencies_of_every_kind(ms: Mainspring) -> None:
    trace = Trace()

    def settings() -> dict[str, int]:
        trace.append("settings")
        return {"size": 3}

    async def pool(config: dict[str, int] = Depends(settings)) -> str:
        return f"pool of {config['size']}"

    def session() -> Iterator[str]:
        trace.append("session opened")
        yield "session"
        trace.append("session closed")

    async def transaction(db: str = Depends(pool), s: str = Depends(session)) -> AsyncIterator[str]:
        trace.append("transaction opened")
        yield f"transaction on {db} in {s}"
        trace.append("transaction closed")

    @ms.task
    async def on_loop(
        n: int, config: dict[str, int] = Depends(settings), tx: str = Depends(transaction), db: str = Depends(pool)
    ) -> list[Any]:
        trace.append("handler")
        return [n, config["size"], tx, db]

    @ms.task
    def in_thread(n: int, tx: str = Depends(transaction), config: dict[str, int] = Depends(settings)) -> list[Any]:
        trace.append("handler")
        return [n, config["size"], tx]

    @ms.task
    def plain(n: int, s: str = Depends(session)) -> list[Any]:
        trace.append("handler")
        return [n, s]

    async with beside(ms):
        text = "transaction on pool of 3 in session"
        assert await (await on_loop.enqueue(1)).result(timeout=WAIT) == [1, 3, text, "pool of 3"]
        opened = ["settings", "session opened", "transaction opened"]
        closed = ["handler", "transaction closed", "session closed"]
        assert trace == opened + closed
        trace.clear()
        assert await (await in_thread.enqueue(2)).result(timeout=WAIT) == [2, 3, text]
        assert trace == opened + closed
        trace.clear()
        assert await (await plain.enqueue(3)).result(timeout=WAIT) == [3, "session"]
        assert trace == ["session opened", "handler", "session closed"]


async def test_dependencies_close_when_the_handler_fails(ms: Mainspring) -> None:
    trace = Trace()

    async def session() -> AsyncIterator[str]:
        try:
            yield "s"
        except OSError:
            trace.append("rolled back")
            raise
        finally:
            trace.append("closed")

    @ms.task(retry=Retry(max_attempts=1))
    async def work(s: str = Depends(session)) -> None:
        raise OSError("down")

    @ms.task(retry=Retry(max_attempts=1))
    def work_in_thread(s: str = Depends(session)) -> None:
        raise OSError("down in a thread")

    async with beside(ms):
        for task in (work, work_in_thread):
            trace.clear()
            with pytest.raises(RunNotSuccessful, match="OSError: down"):
                await (await task.enqueue()).result(timeout=WAIT)
            assert trace == ["rolled back", "closed"]


async def test_a_dependency_that_fails_fails_the_run(ms: Mainspring) -> None:
    def broken() -> str:
        raise ConnectionError("no database")

    @ms.task(retry=Retry(max_attempts=1))
    def work(db: str = Depends(broken)) -> None: ...

    async with beside(ms):
        with pytest.raises(RunNotSuccessful, match="ConnectionError: no database"):
            await (await work.enqueue()).result(timeout=WAIT)


async def test_a_dependency_is_no_argument(ms: Mainspring) -> None:
    from mainspring.model.errors import WrongArguments

    @ms.task
    def work(n: int, db: str = Depends(lambda: "db")) -> None: ...

    with pytest.raises(WrongArguments, match="db"):
        await work.enqueue(1, db="mine")


# ── running ────────────────────────────────────────────────────────────────


def test_run_until_idle_works_off_retries_and_children(ms: Mainspring) -> None:
    ran: list[str] = []

    @ms.task
    async def child() -> None:
        ran.append("child")

    @ms.task(retry=Retry(max_attempts=2, initial="10ms", jitter=0))
    async def parent(ctx: Context) -> None:
        ran.append(f"parent {ctx.attempt}")
        if ctx.attempt == 1:
            raise OSError("once")
        await child.enqueue()

    parent.sync.enqueue()
    parent.using(delay="1h").sync.enqueue()
    ms.run(until_idle=True)
    assert ran == ["parent 1", "parent 2", "child"]
    assert [run.state for run in ms.sync.runs(state="waiting")] == [State.WAITING]
    ms.run(until_idle=True)  # again: nothing to do


def test_run_until_idle_does_not_wait_for_what_it_cannot_run(make: Make) -> None:
    ms = make(queues=["default"])

    @ms.task
    async def work() -> None: ...

    mine, other = work.sync.enqueue(), work.using(queue="elsewhere").sync.enqueue()
    ms.run(until_idle=True)
    assert (mine.state(), other.state()) == (State.SUCCEEDED, State.WAITING)


async def test_stop_ends_run_async(ms: Mainspring) -> None:
    @ms.task
    async def work() -> str:
        ms.stop()
        return "last"

    handle = await work.enqueue()
    async with asyncio.timeout(20):
        await ms.run_async(signals=False)
    assert await handle.result(timeout=WAIT) == "last"


async def test_lifespan_of_an_asgi_app(ms: Mainspring) -> None:
    @ms.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    app = FastAPI(lifespan=ms.lifespan())

    @app.post("/greet/{name}")
    async def post(name: str) -> dict[str, str]:
        handle = await greet.enqueue(name)
        return {"id": handle.id, "said": await handle.result(timeout=WAIT)}

    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        answer = await client.post("/greet/ada")
        assert answer.status_code == 200
        assert answer.json()["said"] == "hello ada"
    assert ms._runtime is None  # the lifespan stopped and closed it


def test_deps_are_on_the_context(make: Make) -> None:
    ms = make(deps={"greeting": "hi"})

    @ms.task
    def work(ctx: Context) -> str:
        return str(ctx.deps["greeting"])

    handle = work.sync.enqueue()
    ms.run(until_idle=True)
    assert handle.result(timeout=WAIT) == "hi"


async def test_two_running_instances_share_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    both = asyncio.Barrier(2)
    apps = [Mainspring(url, name=name, concurrency=1, poll_interval="50ms") for name in ("a", "b")]
    tasks = []
    for app in apps:

        @app.task
        async def meet() -> str:
            await both.wait()
            return "met"

        tasks.append(meet)
    async with beside(apps[0]), beside(apps[1]):
        # each has one slot, so the two runs can only meet when both instances take one
        handles = await tasks[0].enqueue_many([(), ()])
        assert [await handle.result(timeout=WAIT) for handle in handles] == ["met", "met"]
        owners = {(await handle.run()).id: None for handle in handles}
        assert len(owners) == 2
