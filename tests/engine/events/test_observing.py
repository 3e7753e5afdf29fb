"""Events as they happen, progress, and dependencies."""

# ruff: noqa: B008 - a dependency is a default value

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mainspring import (
    Context,
    Depends,
    LoggingHandler,
    Mainspring,
    Retry,
    RunNotSuccessful,
    State,
)
from mainspring.engine.events import bus
from mainspring.model.events import (
    Event,
    RunEvent,
    RunFailed,
    RunRetrying,
    RunSucceeded,
    SubscriberFailed,
)
from mainspring.testing import travel
from tests.engine.support import START, WAIT, beside

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


async def test_a_late_subscriber_gets_the_events_from_then_on(ms: Mainspring) -> None:
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


async def test_a_failing_subscriber_does_not_disturb_others_and_is_noted(
    ms: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_the_log_names_a_subscriber_that_is_slow_or_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: RunSucceeded) -> None:
        raise ValueError("subscriber is broken")

    monkeypatch.setattr(bus, "MAX_SUBSCRIBER_EVENTS", 2)
    some = bus.Bus()
    some.bind(asyncio.get_running_loop(), None)
    some.subscribe((RunSucceeded,), broken)
    for _ in range(3):
        some.publish(RunSucceeded(run_id="r"))
    await asyncio.sleep(0)
    await some.settle()
    slow, *failed = [r.getMessage() for r in caplog.records if r.name == "mainspring.events"]
    assert slow.startswith(f"the subscriber {broken.__qualname__} to RunSucceeded is too slow: more than 2 events wait")
    assert failed == [f"the subscriber {broken.__qualname__} to RunSucceeded failed"] * 2


async def test_the_logging_handler(ms: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    ms.on_event(Event, LoggingHandler(logging.getLogger("my.events")))

    @ms.task(retry=Retry(max_attempts=2, initial="1s"))
    async def work() -> None:
        raise OSError("down")

    with caplog.at_level(logging.INFO, "my.events"):
        async with travel(ms, START) as t:
            handle = await work.enqueue()
            await t.advance("1m")
    lines = [(r.levelname, r.action) for r in caplog.records if r.name == "my.events" and r.run_id == handle.id]  # type: ignore[attr-defined]
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
