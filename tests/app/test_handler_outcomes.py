"""What a handler raises or returns to choose its outcome, and which of its errors are tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mainspring import Cancel, Fail, InvalidInput, Mainspring, Retry, RetryPolicy, Snooze, State
from mainspring.model.instant import to_datetime
from mainspring.testing import travel
from tests.stored_rows import stored

START = "2026-01-05T08:00:00Z"


def raising(make_error: Callable[[], BaseException]) -> Callable[[], Any]:
    """Return a function that raises a new error each time: an error that the module kept would keep its traceback."""

    def act() -> Any:
        raise make_error()

    return act


def raise_class(kind: type[BaseException]) -> Callable[[], Any]:
    def act() -> Any:
        raise kind

    return act


def in_a_group() -> Any:
    raise ExceptionGroup("two", [ValueError("x"), Fail("no address")])


OUTCOMES: list[tuple[str, Callable[[], Any], State, str]] = [
    ("raise Fail", raising(lambda: Fail("no address")), State.FAILED, "no address"),
    ("return Fail", lambda: Fail("no address"), State.FAILED, "no address"),
    ("raise the class Fail", raise_class(Fail), State.FAILED, "failed by its handler"),
    ("raise Fail in a group", in_a_group, State.FAILED, "ExceptionGroup: two (2 sub-exceptions)"),
    ("raise Cancel", raising(lambda: Cancel("the order is gone")), State.CANCELLED, "the order is gone"),
    ("return Cancel", lambda: Cancel("the order is gone"), State.CANCELLED, "the order is gone"),
    ("raise the class Cancel", raise_class(Cancel), State.CANCELLED, "cancelled by its handler"),
    ("return the class Cancel", lambda: Cancel, State.CANCELLED, "cancelled by its handler"),
    ("raise Snooze", raising(lambda: Snooze("10m")), State.WAITING, ""),
    ("return Snooze", lambda: Snooze("10m"), State.WAITING, ""),
    ("raise Snooze of nonsense", lambda: Snooze("soon"), State.RETRYING, "Snooze.delay: 'soon'"),
]


@pytest.mark.parametrize("executor", ["loop", "thread"])
@pytest.mark.parametrize(("act", "state", "words"), [row[1:] for row in OUTCOMES], ids=[row[0] for row in OUTCOMES])
async def test_a_handler_chooses_its_outcome(executor: Any, act: Callable[[], Any], state: State, words: str) -> None:
    ms = Mainspring("memory://")

    @ms.task(executor=executor, retry=Retry(initial="1h"))
    def work() -> Any:
        return act()

    async with travel(ms, START) as t:
        handle = await work.enqueue()
        await t.settle()
        run = await handle.run()
        assert run.state is state
        assert words in (run.error or run.reason or "")
        assert run.failures == (0 if state in (State.CANCELLED, State.WAITING) else 1)
        if state is State.WAITING:
            assert run.next_attempt_at == to_datetime(t.clock.now() + 600_000)


async def test_a_raised_fail_keeps_the_traceback_of_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def send() -> None:
        try:
            raise KeyError("address")
        except KeyError as error:
            raise Fail("no address") from error

    async with travel(ms, START) as t:
        await send.enqueue()
        await t.settle()
    (line,) = [record.getMessage() for record in caplog.records if "no address" in record.getMessage()]
    assert "task send failed (attempt 1 of 3, not retried): no address" in line
    assert "KeyError: 'address'" in line


FILTERED = Retry(on=(ConnectionError, TimeoutError), never=(ConnectionResetError,), max_attempts=2, initial="1s")


@pytest.mark.parametrize(
    ("error", "calls"),
    [(ConnectionError, 2), (ConnectionResetError, 1), (ValueError, 1), (TimeoutError, 2)],
)
@pytest.mark.parametrize("executor", ["loop", "thread"])
async def test_the_filter_of_a_task_decides_about_a_retry(executor: Any, error: type[Exception], calls: int) -> None:
    ms, seen = Mainspring("memory://"), []

    @ms.task(executor=executor, retry=FILTERED)
    def work() -> None:
        seen.append(1)
        raise error

    async with travel(ms, START) as t:
        handle = await work.enqueue()
        await t.advance("1m")
        assert ((await handle.run()).state, len(seen)) == (State.FAILED, calls)


@pytest.mark.parametrize(("policy", "calls"), [(Retry(on=ConnectionError), 1), (Retry(on=TimeoutError), 3)])
async def test_a_time_out_counts_as_timeout_error(policy: RetryPolicy, calls: int) -> None:
    ms, seen = Mainspring("memory://"), []

    @ms.task(retry=policy, timeout="1s")
    async def work() -> None:
        seen.append(1)
        await asyncio.sleep(60)

    async with travel(ms, START) as t:
        handle = await work.enqueue()
        await t.advance("5m")
        assert ((await handle.run()).state, len(seen)) == (State.FAILED, calls)


async def test_the_filter_also_holds_under_the_policy_of_a_call_or_schedule() -> None:
    ms, seen = Mainspring("memory://"), []

    @ms.every("1h", retry=FILTERED)
    async def work() -> None:
        seen.append(1)
        raise ValueError("x")

    async with travel(ms, START) as t:
        await work.using(retry=Retry(max_attempts=5)).enqueue()
        await t.advance("10m")
        assert len(seen) == 1
        await t.advance("1h")
        assert len(seen) == 2
        options = (await stored(ms, ms.get("work"))).spec.options
        assert options is not None
        assert options.retry == Retry(max_attempts=2, initial="1s")  # what is stored has no filter


def test_a_filter_is_refused_where_it_would_be_stored_or_lost() -> None:
    ms = Mainspring("memory://")

    @ms.task
    def work() -> None: ...

    words = r"retry.on: names classes, which belong to a task .*Give it to the task: @ms.task\(retry=Retry\(on=…\)\)"
    for act in (
        lambda: work.using(retry=FILTERED),
        lambda: ms.cron("0 9 * * *", retry=FILTERED)(work),
        lambda: ms.http("call", "https://example.com", every="1h", retry=FILTERED),
        lambda: ms.sync.schedule("x", work, every="1h", retry=FILTERED),
    ):
        with pytest.raises(InvalidInput, match=words):
            act()
    assert ms.declared == ()
    assert ms.sync.schedules() == []
    ms.sync.close()
