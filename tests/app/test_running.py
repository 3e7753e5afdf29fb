"""Running: until idle, until stopped, in an ASGI app, two on one file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from fastapi import FastAPI

from mainspring import (
    Context,
    Mainspring,
    Retry,
    State,
)
from mainspring.app.internals import host_of
from tests.engine.support import WAIT, Make, beside

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


def test_run_until_idle_does_not_miss_a_run_that_a_process_handed_back_a_moment_ago(ms: Mainspring) -> None:
    """At the exit of a process its runs are handed back, and can be claimed a quarter of a second later."""
    ran: list[str] = []

    @ms.task
    async def work() -> None:
        ran.append("work")

    work.using(delay="200ms").sync.enqueue()
    ms.run(until_idle=True)
    assert ran == ["work"]


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
    assert host_of(ms).runtime is None  # the lifespan stopped and closed it


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


async def test_sharing_starts_one_engine_and_the_last_to_leave_stops_it(ms: Mainspring) -> None:
    inside, leave = asyncio.Event(), asyncio.Event()

    async def other() -> bool:
        async with ms.sharing() as alone:
            inside.set()
            await leave.wait()
            return alone()

    async with ms.sharing() as alone:
        assert ms.is_running
        assert alone()
        task = asyncio.create_task(other())
        await inside.wait()
        assert not alone()
    assert ms.is_running  # the other still needs it
    leave.set()
    assert await task
    assert not ms.is_running
    async with ms.sharing():  # and it can be had again
        assert ms.is_running


async def test_sharing_uses_an_engine_that_runs_and_leaves_it_running(ms: Mainspring) -> None:
    async with ms.running():
        async with ms.sharing() as alone:
            assert not alone()
        assert ms.is_running
    assert not ms.is_running


async def test_many_may_come_and_go_at_once(ms: Mainspring) -> None:
    async def visit(n: int) -> None:
        await asyncio.sleep(n % 3 * 0.001)
        async with ms.sharing():
            assert ms.is_running
            await asyncio.sleep(n % 5 * 0.001)

    await asyncio.gather(*map(visit, range(40)))
    assert not ms.is_running
