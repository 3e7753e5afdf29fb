"""Time limits and requests to stop: a thread cannot be stopped, so it is waited for, and its own outcome counts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from typing import Any

import pytest

from mainspring import Cancel, Context, Mainspring, Retry, Run, State
from mainspring.app.internals import registry_of
from mainspring.model.events import Event, RunCancelled, RunFailed, RunRetrying, RunStarted, RunSucceeded
from mainspring.ports.executor import HeldRun
from tests.engine.support import ONCE

WAIT = 20.0


@pytest.fixture
def ms() -> Mainspring:
    return Mainspring("memory://", heartbeat="50ms")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "mainspring.engine")
    return caplog


async def ended(ms: Mainspring, run_id: str) -> Run:
    """Wait for the end of a run."""
    async with asyncio.timeout(WAIT):
        while (run := await ms.find_by_id(run_id)).ended_at is None:  # noqa: ASYNC110 - a fact of the store
            await asyncio.sleep(0.005)
    return run


def pass_limit(held: HeldRun) -> None:
    """Wait in a handler's thread until it was asked to stop, and its execution is longer than its limit."""
    assert held.cancelled.wait(WAIT)
    while time.monotonic() - held.execution.started <= (held.attempt.timeout or 0) / 1000:
        threading.Event().wait(0.001)


async def last(ms: Mainspring, run_id: str) -> Any:
    events: list[Event] = await ms.events(run=run_id)
    return events[-1]


def test_a_task_has_no_time_limit_and_no_overrun_unless_they_are_given(ms: Mainspring) -> None:
    @ms.task
    def plain() -> None: ...

    @ms.task(timeout="5m", overrun="1m")
    def limited() -> None: ...

    handlers = registry_of(ms).handlers
    assert (handlers["plain"].timeout, handlers["plain"].overrun) == (None, None)
    assert (handlers["limited"].timeout, handlers["limited"].overrun) == (300_000, 60_000)


async def test_a_thread_past_its_time_limit_runs_once_and_its_result_counts(
    ms: Mainspring, warnings: pytest.LogCaptureFixture
) -> None:
    told, release = threading.Event(), threading.Event()

    @ms.task(timeout="50ms")
    def backup(ctx: Context) -> str:
        pass_limit(ctx._held)
        assert ctx.cancelled
        told.set()
        assert release.wait(WAIT)
        return "saved"

    async with ms.running():
        handle = await backup.enqueue()
        assert await asyncio.to_thread(told.wait, WAIT)
        assert await handle.state() is State.RUNNING
        release.set()
        assert await handle.result(timeout=WAIT) == "saved"
        event = await last(ms, handle.id)
        assert isinstance(event, RunSucceeded)
        assert event.ms is not None
        assert event.overran_ms == event.ms - 50
        assert len(await ms.events(run=handle.id, types=[RunStarted])) == 1
    said = "task backup has run for 50ms, its time limit; a thread cannot be stopped, so it keeps running, and "
    assert warnings.messages == [f"{said}its outcome will count (run {handle.id}, attempt 1)"]


async def test_an_attempt_within_its_time_limit_did_not_overrun(ms: Mainspring) -> None:
    @ms.task(timeout="10m")
    def quick() -> None: ...

    async with ms.running():
        handle = await quick.enqueue()
        await handle.result(timeout=WAIT)
        assert (await last(ms, handle.id)).overran_ms is None


async def test_the_error_of_a_thread_past_its_time_limit_counts_and_is_retried(ms: Mainspring) -> None:
    @ms.task(timeout="20ms", retry=Retry(max_attempts=2, initial="1ms", jitter=0))
    def backup(ctx: Context) -> None:
        pass_limit(ctx._held)
        raise ConnectionError("the disk is gone")

    async with ms.running():
        handle = await backup.enqueue()
        run = await ended(ms, handle.id)
        assert (run.state, run.reason, run.error) == (State.FAILED, "error", "ConnectionError: the disk is gone")
        (retrying,) = await ms.events(run=handle.id, types=[RunRetrying])
        assert isinstance(retrying, RunRetrying)
        failed = await last(ms, handle.id)
        assert isinstance(failed, RunFailed)
        assert [event.overran_ms is not None for event in (retrying, failed)] == [True, True]


async def test_a_coroutine_is_stopped_at_its_time_limit_unless_it_swallows_that(ms: Mainspring) -> None:
    @ms.task(timeout="20ms", retry=ONCE)
    async def polite() -> None:
        await asyncio.Event().wait()

    @ms.task(timeout="20ms", retry=ONCE)
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "my own end"

    async with ms.running():
        run = await ended(ms, (await polite.enqueue()).id)
        assert (run.state, run.reason, run.error) == (State.FAILED, "timeout", "timed out after 0.02 s")
        assert (await last(ms, run.id)).overran_ms is None
        handle = await stubborn.enqueue()
        assert await handle.result(timeout=WAIT) == "my own end"
        assert (await last(ms, handle.id)).overran_ms is not None


async def test_a_handler_that_blocks_the_loop_past_its_time_limit_has_its_own_outcome(ms: Mainspring) -> None:
    @ms.task(executor="loop", timeout="1ms", retry=ONCE)
    def work() -> str:
        threading.Event().wait(0.01)
        return "late"

    async with ms.running():
        handle = await work.enqueue()
        assert await handle.result(timeout=WAIT) == "late"
        assert (await last(ms, handle.id)).overran_ms >= 9


async def test_an_overrun_lets_another_attempt_begin_beside_the_first_and_the_log_says_so(
    ms: Mainspring, warnings: pytest.LogCaptureFixture
) -> None:
    second = threading.Event()

    @ms.task(timeout="20ms", overrun="30ms", retry=Retry(max_attempts=2, initial="1ms", jitter=0))
    def backup(ctx: Context) -> str:
        if ctx.attempt == 1:
            assert second.wait(WAIT)  # it ends only once the second attempt has begun
            return "first"
        second.set()
        return "second"

    async with ms.running():
        handle = await backup.enqueue()
        assert await handle.result(timeout=WAIT) == "second"
    assert warnings.messages[0] == (
        "task backup has run for 20ms, its time limit; a thread cannot be stopped, so it keeps running, and if it "
        f"has not ended 30ms after the limit, another attempt may begin beside it (run {handle.id}, attempt 1)"
    )
    assert "did not stop within 0.03 s and was abandoned" in warnings.messages[1]


@pytest.mark.parametrize("end", ["return", "Cancel", "raise Cancel", "raise"])
async def test_what_a_cancelled_thread_did_is_what_becomes_of_its_run(ms: Mainspring, end: str) -> None:
    began = threading.Event()

    @ms.task(retry=ONCE)
    def work(ctx: Context) -> Any:
        began.set()
        assert ctx._held.cancelled.wait(WAIT)
        if end == "raise":
            raise InterruptedError("asked to stop")
        if end == "raise Cancel":
            raise Cancel("half done")
        return Cancel("half done") if end == "Cancel" else "all done"

    async with ms.running():
        handle = await work.enqueue()
        assert await asyncio.to_thread(began.wait, WAIT)
        await ms.cancel(handle.id, reason="no longer needed")
        run = await ended(ms, handle.id)
        if end == "return":
            assert (run.state, run.result) == (State.SUCCEEDED, "all done")
        else:
            assert run.state is State.CANCELLED
            assert run.reason == ("half done" if "Cancel" in end else "no longer needed")
            assert isinstance(await last(ms, handle.id), RunCancelled)


async def test_cancel_running_starts_the_replacement_only_after_the_thread_has_returned(ms: Mainspring) -> None:
    """Both that the fire is refused nothing and that two threads of the schedule are never alive at once."""
    alive, most = 0, 0
    told, release, replaced = threading.Event(), threading.Event(), threading.Event()
    lock = threading.Lock()

    @ms.every("300ms", overlap="cancel_running", retry=ONCE)
    def report(ctx: Context) -> None:
        nonlocal alive, most
        with lock:
            alive += 1
            most = max(most, alive)
        if told.is_set():
            replaced.set()
        else:
            assert ctx._held.cancelled.wait(WAIT)
            told.set()
            assert release.wait(WAIT)
        with lock:
            alive -= 1

    async with ms.running():
        assert await asyncio.to_thread(told.wait, WAIT)
        (old,) = await ms.runs(state="running")
        async with asyncio.timeout(WAIT):
            while not await ms.runs(state="waiting"):  # noqa: ASYNC110 - the replacement is there, and is not claimed
                await asyncio.sleep(0.01)
        assert not replaced.is_set()
        assert [run.id for run in await ms.runs(state="running")] == [old.id]
        release.set()
        assert await asyncio.to_thread(replaced.wait, WAIT)
        assert (await ms.find_by_id(old.id)).state is State.SUCCEEDED
    assert most == 1
