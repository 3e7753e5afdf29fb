"""Leases under real handlers, shutting down, free slots."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mainspring import Context, Mainspring, State
from mainspring.app.internals import host_of
from mainspring.model.events import LeaseExpired, RunHandedBack, RunStarted, StaleResultRejected
from mainspring.testing import manual
from tests.engine.support import WAIT


@pytest.fixture
def ms(plain_ms: Mainspring) -> Mainspring:
    return plain_ms


# ── leases ─────────────────────────────────────────────────────────────────


async def test_a_blocked_handler_loop_keeps_its_leases() -> None:
    ms = Mainspring("memory://", lease_ttl="600ms", poll_interval="50ms")
    began = threading.Event()

    @ms.task(executor="loop")
    def block() -> str:
        began.set()
        time.sleep(1.5)  # the thing under test: more than two lease times on the handlers' loop
        return "kept"

    async with ms.running():
        handle = await block.enqueue()
        assert await handle.result(timeout=WAIT) == "kept"
        run = await handle.run()
        assert (run.attempt, run.crashes) == (1, 0)
        assert not await ms.events(types=[LeaseExpired])


async def test_a_lost_lease_means_a_refused_result(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://", lease_ttl="30s")
    go_on = asyncio.Event()
    began: list[int] = []

    @ms.task
    async def work(ctx: Context) -> str:
        began.append(ctx.attempt)
        if ctx.attempt == 1:
            await go_on.wait()
        return f"attempt {ctx.attempt}"

    with caplog.at_level(logging.CRITICAL, "mainspring.engine"):
        async with manual(ms, "2026-03-02T08:00:00Z") as t:
            worker = t.runtime.worker
            assert worker is not None
            handle = await work.enqueue()
            await worker.run_once()
            await t.settle()
            assert began == [1]
            # this worker falls silent: no heartbeat for longer than the lease; another instance notices
            await t.advance("31s")
            await t.runtime.settler.rescue()
            assert await handle.state() is State.WAITING
            # the handler returns at last
            go_on.set()
            await t.settle()
            notes = await ms.events(run=handle.id, types=[StaleResultRejected])
            assert [(n.epoch, n.attempt, n.outcome) for n in notes if isinstance(n, StaleResultRejected)] == [
                (1, 1, "Succeeded")
            ]
            assert await handle.state() is State.WAITING
            # and the run is done once more, under a new lease
            await worker.run_once()
            await t.settle()
            assert await handle.result() == "attempt 2"
            assert (await handle.run()).crashes == 1


async def test_a_result_under_a_lease_that_its_own_worker_took_again_is_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ms = Mainspring("memory://", lease_ttl="30s")

    @ms.task
    async def work(ctx: Context) -> str:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return f"attempt {ctx.attempt}"

    with caplog.at_level(logging.CRITICAL, "mainspring.engine"):
        async with manual(ms, "2026-03-02T08:00:00Z") as t:
            worker = t.runtime.worker
            assert worker is not None
            handle = await work.enqueue()
            await worker.run_once()
            await t.settle()
            await t.advance("31s")
            await t.runtime.settler.rescue()
            await worker.run_once()  # the same worker is the first to claim it, while the old attempt still runs
            await t.settle()
            assert await handle.result() == "attempt 2"
            notes = await ms.events(run=handle.id, types=[StaleResultRejected])
            assert [(note.epoch, note.attempt) for note in notes] == [(1, 1)]


async def test_a_lease_lost_to_another_worker_stops_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://", lease_ttl="30s")
    stopped = asyncio.Event()

    @ms.task
    async def work(ctx: Context) -> str:
        if ctx.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        return "second"

    with caplog.at_level(logging.CRITICAL, "mainspring.engine"):
        async with manual(ms, "2026-03-02T08:00:00Z") as t:
            worker = t.runtime.worker
            assert worker is not None
            handle = await work.enqueue()
            await worker.run_once()
            await t.settle()
            await t.advance("31s")
            await t.runtime.settler.rescue()
            await worker.heart.run_once()  # the heartbeat hears that the lease is gone
            await t.settle()
            assert stopped.is_set()
            await worker.run_once()
            await t.settle()
            assert await handle.result() == "second"


# ── shutting down ──────────────────────────────────────────────────────────


async def test_what_runs_finishes_before_the_engine_stops(ms: Mainspring) -> None:
    began, go_on = threading.Event(), threading.Event()

    @ms.task
    def work() -> str:
        began.set()
        assert go_on.wait(20)
        return "finished"

    async with ms.running():
        handle = await work.enqueue()
        await asyncio.to_thread(began.wait)
        threading.Timer(0.05, go_on.set).start()
    assert await handle.result(timeout=WAIT) == "finished"
    assert (await handle.run()).attempt == 1


@pytest.mark.parametrize("kind", ["coroutine", "process"])
async def test_what_does_not_finish_in_time_is_handed_back(
    kind: str, tmp_path: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ms: Mainspring = program.ms
    host_of(ms).configure(settings=type(ms.settings)(shutdown_timeout=0))
    began = threading.Event()

    @ms.task
    async def coroutine() -> None:
        began.set()
        await asyncio.Event().wait()

    async with ms.running():
        if kind == "process":
            handle: Any = await program.forever.using(timeout="60s").enqueue(str(tmp_path / "mark"))
            async with asyncio.timeout(20):
                while not (tmp_path / "mark").exists():  # noqa: ASYNC110 - a fact of another process
                    await asyncio.sleep(0.01)
        else:
            handle = await coroutine.enqueue()
            await asyncio.to_thread(began.wait)
    run = await handle.run()
    assert (run.state, run.failures, run.crashes) == (State.WAITING, 0, 0)
    (back,) = await ms.events(run=run.id, types=[RunHandedBack])
    assert isinstance(back, RunHandedBack)
    assert (back.reason, back.began) == ("shutdown", True)


async def test_more_is_claimed_only_into_free_slots() -> None:
    ms = Mainspring("memory://", concurrency=2)
    running: list[int] = []
    most = 0
    gate = asyncio.Event()

    @ms.task
    async def work(n: int) -> None:
        nonlocal most
        running.append(n)
        most = max(most, len(running))
        if n == 0:
            await gate.wait()
        running.remove(n)

    async with ms.running():
        handles = await work.enqueue_many([(n,) for n in range(20)])
        for handle in handles[1:]:
            await handle.result(timeout=WAIT)
        assert len(await ms.runs(state="running")) == 1
        gate.set()
        await handles[0].result(timeout=WAIT)
        assert most == 2
        assert len(await ms.events(types=[RunStarted])) == 20


Handlers = Callable[..., Any]
