"""Tasks, handles, arguments, and where enqueueing works."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import (
    Cancel,
    Context,
    Mainspring,
    ResultTimeout,
    Retry,
    RunHandle,
    RunNotSuccessful,
    Snooze,
    State,
)
from mainspring.app.internals import host_of
from mainspring.model.errors import DuplicateTask, UnknownRun
from mainspring.testing import inline, travel
from tests.engine.support import START, WAIT, Make, beside

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


async def test_a_wrapper_that_takes_its_arguments_by_position_only(ms: Mainspring) -> None:
    def shouting(function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def louder(*args: Any) -> str:
            return function(*args).upper()

        return louder

    @ms.task
    @shouting
    def greet(name: str, mark: str = "!") -> str:
        return f"hello {name}{mark}"

    async with beside(ms):
        assert await (await greet.enqueue("you", mark="?")).result(timeout=WAIT) == "HELLO YOU?"


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
        assert (await handles[2].run()).priority == "high"


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

    handle = await never.enqueue()  # no worker runs it
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
        assert await RunHandle(child_id, host_of(ms), child.signature.result).result(timeout=WAIT) == 40


async def test_inline_mode_returns_after_the_run(ms: Mainspring) -> None:
    @ms.task
    def work(n: int) -> int:
        return n + 1

    async with inline(ms):
        handle = await work.enqueue(1)
        assert await handle.state() is State.SUCCEEDED
        assert await handle.result() == 2


async def test_using_keeps_what_an_earlier_using_set(ms: Mainspring) -> None:
    @ms.task
    async def send() -> None: ...

    when = datetime(2030, 1, 1, tzinfo=UTC)
    handle = await send.using(priority="high", delay="10m").using(at=when).using(queue="mail").enqueue()
    run = await handle.run()
    assert (run.priority, run.queue) == ("high", "mail")
    assert run.due_at == when  # the newest word on when: not the delay


async def test_an_app_says_whether_its_engine_runs(ms: Mainspring) -> None:
    assert not ms.is_running
    await ms.schedules()  # a call opens the store, it starts nothing
    assert not ms.is_running
    async with beside(ms):
        assert ms.is_running
    assert not ms.is_running
