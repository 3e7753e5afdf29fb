"""Options of a call, cancelling and running again."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import (
    Context,
    Mainspring,
    Retry,
    RunNotSuccessful,
    State,
)
from mainspring.model.errors import IllegalTransition, InvalidInput, WrongArguments
from mainspring.model.events import (
    CancelRequested,
    RunCancelled,
    RunScheduled,
    RunStarted,
)
from mainspring.testing import travel
from tests.engine.support import START, WAIT, Make, beside
from tests.stored_rows import stored

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


async def test_what_is_enqueued_in_one_commit_is_due_at_one_instant_in_the_order_given(ms: Mainspring) -> None:
    @ms.task
    def count(number: int) -> None: ...

    handles = await count.enqueue_many([(number,) for number in range(1_500)])
    runs = [await handle.run() for handle in (handles[0], handles[999], handles[1_000], handles[-1])]
    assert runs[0].due_at == runs[1].due_at <= runs[2].due_at == runs[3].due_at
    assert [handle.id for handle in handles] == sorted(handle.id for handle in handles)


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


@pytest.mark.parametrize("wrong", [("b", "x"), (), {"copies": 2}, ("a", 1, 2)])
async def test_one_wrong_call_of_many_refuses_them_all_before_anything_is_stored(ms: Mainspring, wrong: Any) -> None:
    @ms.task
    async def work(customer: str, copies: int = 1) -> None: ...

    with pytest.raises(WrongArguments):
        await work.enqueue_many([*[("a",)] * 2_500, wrong])
    assert await ms.events(types=[RunScheduled]) == []
    assert await ms.runs() == []


async def test_calls_without_arguments_are_told_from_those_that_lack_some(ms: Mainspring) -> None:
    @ms.task
    async def optional(copies: int = 1, *rest: int, **named: int) -> int:
        return copies + len(rest) + len(named)

    @ms.task
    async def needed(*rest: int, key: int) -> None: ...

    handles = await optional.enqueue_many([(), (4, 5), {}, {"other": 1}, ()])
    assert [(await stored(ms, handle.run())).body is None for handle in handles] == [True, False, True, False, True]
    async with beside(ms):
        assert [await handle.result(timeout=WAIT) for handle in handles] == [1, 5, 1, 2, 1]
    with pytest.raises(WrongArguments, match="'key'"):
        await needed.enqueue_many([()])


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
        run = await stored(ms, handle.run())
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


@pytest.mark.parametrize("gives_up", [True, False])
async def test_a_cancelled_thread_decides_how_its_run_ends(ms: Mainspring, gives_up: bool) -> None:
    """A thread cannot be stopped: if it returns in spite of that, its work is done, and the run has succeeded."""
    began = threading.Event()

    @ms.task
    def forever(ctx: Context) -> str:
        began.set()
        assert ctx._held.cancelled.wait(20)
        if gives_up:
            raise RuntimeError("asked to stop")
        return f"cancelled: {ctx.cancelled}"

    async with beside(ms):
        handle = await forever.enqueue()
        await asyncio.to_thread(began.wait)
        await ms.cancel(handle.id, reason="enough")
        if gives_up:
            with pytest.raises(RunNotSuccessful, match="ended as cancelled: enough"):
                await handle.result(timeout=WAIT)
        else:
            assert await handle.result(timeout=WAIT) == "cancelled: True"


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
        with pytest.raises(IllegalTransition, match="is succeeded and cannot be retried"):
            await ms.retry(handle.id)


# ── expiry and progress ────────────────────────────────────────────────────


async def test_a_run_that_has_not_begun_by_its_expiry_is_skipped() -> None:
    ms, ran = Mainspring("memory://"), []

    @ms.task
    async def send(what: str) -> None:
        ran.append(what)

    soon = datetime(2026, 1, 5, 8, 10, tzinfo=UTC)
    old, kept = await send.using(expires="10m").enqueue("old"), await send.using(expires="3h").enqueue("kept")
    await ms.close()
    async with travel(ms, datetime.now(tz=UTC) + timedelta(hours=1)) as t:
        await t.settle()
        assert ran == ["kept"]
        run = await old.run()
        assert (run.state, run.reason) == (State.SKIPPED, "start_deadline")
        assert await kept.state() is State.SUCCEEDED
        with pytest.raises(RunNotSuccessful, match="ended as skipped: start_deadline"):
            await old.result()
        with pytest.raises(InvalidInput, match=r"^expires: lies before the run is due"):
            await send.using(expires=soon).enqueue("too late")
        later = await send.using(delay="5m", expires="6m").enqueue("in time")
        with pytest.raises(InvalidInput, match=r"^expires: lies before the run is due. Give a time after delay or at"):
            await send.using(delay="5m", expires="4m").enqueue("never")
        await t.advance("5m")
        assert await later.state() is State.SUCCEEDED
    for wrong in ("soon", -1, datetime(2026, 1, 5, 8, 0)):
        with pytest.raises(InvalidInput, match=r"^expires: "):
            send.using(expires=wrong)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [(("half way",), "half way"), ((0.5, "3 of 6"), "50% 3 of 6"), ((1,), "100%"), (("rows", "3 of 6"), "rows 3 of 6")],
)
async def test_progress_takes_a_share_a_text_or_both(arguments: tuple[Any, ...], line: str) -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work(ctx: Context) -> None:
        ctx.progress(*arguments)
        await asyncio.sleep(60)

    async with travel(ms, START) as t:
        handle = await work.enqueue()
        await t.advance("5s")
        assert (await handle.run()).progress == line
        await t.advance("60s")
        assert await handle.state() is State.SUCCEEDED


@pytest.mark.parametrize("wrong", [None, [1], float("nan")])
async def test_progress_that_is_neither_fails_with_words(wrong: Any) -> None:
    ms = Mainspring("memory://")

    @ms.task(retry=Retry(max_attempts=1))
    async def work(ctx: Context) -> None:
        ctx.progress(wrong)

    async with travel(ms, START) as t:
        handle = await work.enqueue()
        await t.settle()
        assert "fraction: " in ((await handle.run()).error or "")
        assert "is not a share of the work. Use a number from 0 to 1" in ((await handle.run()).error or "")
