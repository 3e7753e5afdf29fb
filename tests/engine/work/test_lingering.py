"""Handlers that outlive their engine: their runs are not executed again while thread and process live."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring import Context, Mainspring, State
from mainspring.app.internals import host_of
from mainspring.model.events import RunHandedBack, RunLost, RunStarted, RunSucceeded
from mainspring.model.run import Run
from mainspring.ports.store import Runs
from mainspring.runtime import lingering

WAIT = 20.0


class Job:
    """A blocking handler that ignores every request to stop, and counts how often it runs at once."""

    def __init__(self) -> None:
        self.began, self.release = threading.Event(), threading.Event()
        self.calls: list[int] = []
        self.alive = self.most = 0

    def __call__(self, ctx: Context) -> str:
        self.calls.append(ctx.attempt)
        self.alive += 1
        self.most = max(self.most, self.alive)
        self.began.set()
        assert self.release.wait(WAIT)
        self.alive -= 1
        return "done"


def app(url: str, job: Callable[..., Any], **options: Any) -> Mainspring:
    made = Mainspring(url, shutdown_timeout=0, lease_ttl="600ms", heartbeat="100ms", poll_interval="50ms")
    made.task(name="job", **options)(job)
    return made


async def stored(ms: Mainspring, run_id: str) -> Run:
    """Return the row of a run."""
    (run,) = await host_of(ms).call(lambda runtime: runtime.store.find(Runs(id=run_id)))
    return run


async def until(fact: Callable[[], Any]) -> None:
    """Wait for a fact."""
    async with asyncio.timeout(WAIT):
        while not await fact():  # noqa: ASYNC110 - a fact of the store
            await asyncio.sleep(0.01)


def handler(job: Job) -> Callable[..., str]:
    """Return the job as a function, as tasks need one."""

    def work(ctx: Context) -> str:
        return job(ctx)

    return work


@pytest.mark.parametrize("scheme", ["sqlite", "memory"])
async def test_a_thread_that_outlives_its_engine_keeps_its_lease_and_its_result_counts(
    tmp_path: Path, scheme: str
) -> None:
    job = Job()
    url = f"sqlite:///{tmp_path / 'x.db'}" if scheme == "sqlite" else "memory://"
    first = app(url, handler(job))
    async with first.running():
        handle = await first.tasks["job"].enqueue()
        assert await asyncio.to_thread(job.began.wait, WAIT)
    second = app(url, handler(job)) if scheme == "sqlite" else first  # a store in memory belongs to its app
    lease = (await stored(second, handle.id)).lease_until or 0
    async with second.running():

        async def is_renewed() -> bool:
            run = await stored(second, handle.id)
            return run.state is not State.RUNNING or (run.lease_until or 0) > lease + 1_200

        await until(is_renewed)  # for longer than a lease lasts, while another engine would claim it
        run = await second.find_by_id(handle.id)
        assert (run.state, run.attempt, job.calls) == (State.RUNNING, 1, [1])
        job.release.set()

        async def has_ended() -> bool:
            return (await second.find_by_id(handle.id)).state is State.SUCCEEDED

        await until(has_ended)
        events = await second.events(run=handle.id, types=[RunStarted, RunHandedBack, RunSucceeded])
        assert [type(event) for event in events] == [RunStarted, RunSucceeded]
    assert (job.calls, job.most) == ([1], 1)
    await first.close()
    await second.close()


async def test_a_cancelled_run_that_outlives_its_engine_is_asked_to_stop(tmp_path: Path) -> None:
    began, asked = threading.Event(), threading.Event()

    def work(ctx: Context) -> None:
        began.set()
        while not asked.is_set():
            if ctx._held.stop is not None and type(ctx._held.stop).__name__ == "HandedBack":
                asked.set()
        raise InterruptedError

    ms = app(f"sqlite:///{tmp_path / 'x.db'}", work)
    async with ms.running():
        handle = await ms.tasks["job"].enqueue()
        assert await asyncio.to_thread(began.wait, WAIT)

    async def is_handed_back() -> bool:
        return (await ms.find_by_id(handle.id)).state is State.WAITING

    await until(is_handed_back)  # it raised because it was asked to stop
    (back,) = await ms.events(run=handle.id, types=[RunHandedBack])
    assert isinstance(back, RunHandedBack)
    assert (back.reason, back.began) == ("shutdown", True)
    await ms.close()


@pytest.mark.parametrize("recovery", ["retry", "fail"])
def test_at_the_exit_of_the_process_its_runs_are_handed_back_for_a_moment_later(tmp_path: Path, recovery: str) -> None:
    job = Job()
    ms = app(f"sqlite:///{tmp_path / 'x.db'}", handler(job), recovery=recovery)

    async def live() -> str:
        async with ms.running():
            handle = await ms.tasks["job"].enqueue()
            assert await asyncio.to_thread(job.began.wait, WAIT)
        return handle.id

    run_id = asyncio.run(live())
    assert ms.sync.find_by_id(run_id).state is State.RUNNING
    lingering._hand_back_at_exit()
    run = asyncio.run(stored(ms, run_id))
    if recovery == "fail":
        assert run.state is State.LOST
        assert len(ms.sync.events(run=run_id, types=[RunLost])) == 1
    else:
        assert (run.state, run.crashes, run.failures) == (State.WAITING, 0, 0)
        (back,) = ms.sync.events(run=run_id, types=[RunHandedBack])
        assert isinstance(back, RunHandedBack)
        assert (back.reason, back.began, back.ready_at) == ("shutdown", True, run.ready_at)
        assert run.ready_at == pytest.approx(back.at + lingering.EXIT_GRACE_MS, abs=100)
    job.release.set()
    ms.sync.close()


def test_a_coroutine_whose_loop_is_closed_is_handed_back(tmp_path: Path) -> None:
    """It swallows its cancellation, so it is waited for; once its loop is closed, it never runs again."""
    ms = Mainspring(f"sqlite:///{tmp_path / 'x.db'}", shutdown_timeout=0)

    @ms.task
    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def live() -> str:
        async with ms.running():
            handle = await stubborn.enqueue()

            async def is_running() -> bool:
                return (await handle.run()).state is State.RUNNING

            await until(is_running)
        assert (await handle.run()).state is State.RUNNING
        return handle.id

    loop = asyncio.new_event_loop()
    try:
        run_id = loop.run_until_complete(live())
    finally:
        loop.close()

    async def is_handed_back() -> bool:
        return (await ms.find_by_id(run_id)).state is State.WAITING

    asyncio.run(until(is_handed_back))
    ms.sync.close()
