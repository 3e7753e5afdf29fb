"""How attempts are carried out: on the loop, in threads, in processes; time-outs, deaths, leases, hand-backs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from mainspring import Mainspring, State
from mainspring.model.events import RunHandedBack
from mainspring.testing import manual
from tests.engine.support import ONCE, START, WAIT, failed


@pytest.fixture
def ms(plain_ms: Mainspring) -> Mainspring:
    return plain_ms


# ── where handlers run ─────────────────────────────────────────────────────


async def test_each_kind_runs_where_it_should(ms: Mainspring) -> None:
    here = threading.get_ident()

    @ms.task
    async def coroutine() -> int:
        return threading.get_ident()

    @ms.task(executor="loop")
    def on_loop() -> int:
        return threading.get_ident()

    @ms.task
    def plain() -> int:
        return threading.get_ident()

    @ms.task(executor="thread")
    def threaded() -> str:
        return threading.current_thread().name

    async with ms.running():
        assert await (await coroutine.enqueue()).result(timeout=WAIT) == here
        assert await (await on_loop.enqueue()).result(timeout=WAIT) == here
        assert await (await plain.enqueue()).result(timeout=WAIT) != here
        assert (await (await threaded.enqueue()).result(timeout=WAIT)).startswith("mainspring-handler")


async def test_threads_are_used_again(ms: Mainspring) -> None:
    @ms.task
    def name() -> str:
        return threading.current_thread().name

    async with ms.running():
        names = {await (await name.enqueue()).result(timeout=WAIT) for _ in range(5)}
        assert len(names) == 1


# ── raising ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("executor", ["auto", "loop"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_any_exception_is_an_outcome(ms: Mainspring, error: type[BaseException], executor: Any) -> None:
    @ms.task(executor=executor, retry=ONCE)
    def blocking() -> None:
        raise error("stop")

    @ms.task(retry=ONCE)
    async def coroutine() -> None:
        raise error("stop")

    @ms.task
    async def next_one() -> str:
        return "still here"

    async with ms.running():
        for task in (blocking, coroutine):
            run = await failed(task)
            assert error.__name__ in (run.error or "")
            assert run.attempt == 1
        assert await (await next_one.enqueue()).result(timeout=WAIT) == "still here"


async def test_awaiting_something_cancelled_is_a_failure_and_not_a_hand_back(ms: Mainspring) -> None:
    @ms.task(retry=ONCE)
    async def work() -> None:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    async with ms.running():
        run = await failed(work)
        assert "CancelledError" in (run.error or "")
        assert not await ms.events(run=run.id, types=[RunHandedBack])


async def test_a_huge_error_text_is_cut(ms: Mainspring) -> None:
    @ms.task(retry=ONCE)
    async def work() -> None:
        raise ValueError("x" * 1_000_000 + "the end")

    async with ms.running():
        error = (await failed(work)).error or ""
        assert len(error) < 2_100
        assert error.startswith("ValueError: xxx")
        assert "characters left out" in error
        assert error.endswith("the end")


# ── time-outs ──────────────────────────────────────────────────────────────


async def test_a_coroutine_past_its_time_out(ms: Mainspring) -> None:
    cleaned = asyncio.Event()

    @ms.task(timeout="50ms", retry=ONCE)
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    @ms.task(timeout="50ms", retry=ONCE)
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I go on"
        return ""

    @ms.task(timeout="10s", retry=ONCE)
    async def own() -> None:
        raise TimeoutError("the bank did not answer")

    async with ms.running():
        run = await failed(work)
        assert (run.error, run.reason) == ("timed out after 0.05 s", "timeout")
        assert cleaned.is_set()
        assert await (await stubborn.enqueue()).result(timeout=WAIT) == "I go on"
        run = await failed(own)
        assert (run.error, run.reason) == ("TimeoutError: the bank did not answer", "error")


async def test_a_thread_that_does_not_listen_is_given_up_after_the_overrun(ms: Mainspring) -> None:
    release = threading.Event()
    ended = threading.Event()

    @ms.task(timeout="30ms", overrun="50ms", retry=ONCE)
    def deaf() -> str:
        release.wait(20)
        ended.set()
        return "too late"

    @ms.task
    def other() -> str:
        return "free"

    async with ms.running():
        run = await failed(deaf)
        assert not ended.is_set()
        assert run.error == "timed out after 0.03 s, did not stop within 0.05 s and was abandoned"
        assert run.reason == "timeout"
        assert run.failures == 1
        release.set()
        await asyncio.to_thread(ended.wait)
        assert await (await other.enqueue()).result(timeout=WAIT) == "free"
        assert await ms.find_by_id(run.id) == run  # the late return changed nothing


async def test_an_attempt_stopped_before_its_first_step_still_ends() -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def unwanted() -> None:
        raise AssertionError("began although it was cancelled")

    async with manual(ms, START) as t:
        handle = await unwanted.enqueue()
        worker = t.runtime.worker
        assert worker is not None
        await worker.run_once()
        worker.cancel(handle.id, "not wanted")  # both are posted to the handlers' loop before it comes to either
        await t.settle()
        assert not worker.running
        assert (await handle.run()).state is State.CANCELLED
