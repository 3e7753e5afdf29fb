"""Callers that wait for runs which another process ends: how often the store is asked, and for what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.app.internals import runtime_of
from mainspring.engine.events import run_waiters
from mainspring.engine.events.run_waiters import RunWaiters
from mainspring.model.errors import StoreUnavailable
from mainspring.model.run import Run, State
from mainspring.ports.store import Runs
from mainspring.testing.virtual_time import VirtualClock, VirtualTime
from tests.engine.support import WAIT, beside


class Elsewhere:
    """Another process that ends runs, and the looks at them."""

    def __init__(self) -> None:
        self.clock = VirtualClock(1_000_000)
        self.time = VirtualTime(self.clock)
        self.ended: set[str] = set()
        self.held: set[str] = set()
        self.looks: list[tuple[float, list[str]]] = []
        self.error: Exception | None = None
        self.takes = 0.0
        self.waiters = RunWaiters(self.find_ended, self.held.__contains__)

    async def find_ended(self, run_ids: Sequence[str]) -> list[Run]:
        self.looks.append((round(self.clock.monotonic(), 6), list(run_ids)))
        if self.takes:
            await asyncio.sleep(self.takes)
        if self.error is not None:
            raise self.error
        return [Run(id=run_id, task="t", state=State.SUCCEEDED) for run_id in run_ids if run_id in self.ended]

    def wait(self, *run_ids: str, timeout: float = 1e6) -> list[asyncio.Task[None]]:
        return [asyncio.ensure_future(self.waiters.wait(run_id, timeout)) for run_id in run_ids]


@pytest.fixture
async def elsewhere() -> Any:
    world = Elsewhere()
    world.time.attach()
    yield world
    world.time.detach()


async def test_without_a_caller_the_store_is_not_asked_and_no_timer_runs(elsewhere: Elsewhere) -> None:
    await elsewhere.time.advance(60.0)
    assert elsewhere.looks == []
    (wait,) = elsewhere.wait("a")
    await elsewhere.time.advance(0.1)
    looks = len(elsewhere.looks)
    assert looks == 4
    wait.cancel()
    await elsewhere.time.settle()
    await elsewhere.time.advance(60.0)
    assert len(elsewhere.looks) == looks
    assert elsewhere.waiters.waiting == {}
    assert elsewhere.waiters._timer is None


async def test_one_look_for_all_awaited_runs_at_most_every_25_ms(elsewhere: Elsewhere) -> None:
    names = [f"r{number}" for number in range(300)]
    waits = elsewhere.wait(*names)
    await elsewhere.time.advance(0.5)
    assert all(run_ids == names for _, run_ids in elsewhere.looks)
    at = [moment for moment, _ in elsewhere.looks]
    pauses = [after - before for before, after in zip([0.0, *at], at, strict=False)]
    assert pauses[0] == pytest.approx(0.02)
    assert pauses[1:] == pytest.approx([0.025] * (len(pauses) - 1))
    elsewhere.ended.update(names[:200])
    await elsewhere.time.advance(0.025)
    assert [wait.done() for wait in waits] == [True] * 200 + [False] * 100
    for wait in waits:
        wait.cancel()


async def test_runs_held_here_are_not_looked_for(elsewhere: Elsewhere) -> None:
    elsewhere.held.add("mine")
    mine, other = elsewhere.wait("mine", "other")
    await elsewhere.time.advance(0.05)
    assert {tuple(run_ids) for _, run_ids in elsewhere.looks} == {("other",)}
    elsewhere.ended.add("other")
    await elsewhere.time.advance(0.05)
    assert other.done()
    looks = len(elsewhere.looks)
    await elsewhere.time.advance(1.0)
    assert len(elsewhere.looks) == looks
    elsewhere.waiters.notify("mine")
    await elsewhere.time.settle()
    assert mine.done()


async def test_slow_looks_come_less_often(elsewhere: Elsewhere) -> None:
    elsewhere.takes = 0.1
    waits = elsewhere.wait("a")
    await elsewhere.time.advance(5.0)
    assert len(elsewhere.looks) == 10, "a look of 100 ms, then 400 ms of rest"
    waits[0].cancel()


async def test_more_runs_than_fit_one_look_take_turns(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_waiters, "MAX_RUNS_PER_QUERY", 2)
    waits = elsewhere.wait("a", "b", "c")
    await elsewhere.time.advance(0.1)
    assert [run_ids for _, run_ids in elsewhere.looks[:3]] == [["a", "b"], ["c", "a"], ["b", "c"]]
    for wait in waits:
        wait.cancel()


async def test_a_store_that_fails_wakes_every_caller(elsewhere: Elsewhere) -> None:
    elsewhere.error = StoreUnavailable("away")
    waits = elsewhere.wait("a", "b")
    await elsewhere.time.advance(0.03)
    assert all(wait.done() for wait in waits), "each caller reads its run, and gets the error"


async def test_an_unexpected_error_does_not_end_the_looks(elsewhere: Elsewhere) -> None:
    elsewhere.error = ValueError("odd")
    (wait,) = elsewhere.wait("a")
    await elsewhere.time.advance(0.03)
    elsewhere.error = None
    elsewhere.ended.add("a")
    await elsewhere.time.advance(0.03)
    assert wait.done()


async def test_an_instance_without_waiting_callers_asks_for_no_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    client, server = Mainspring(url), Mainspring(url)

    async def seven() -> int:
        await asyncio.sleep(0.3)
        return 7

    work = client.task(name="work")(seven)
    server.task(name="work")(seven)
    async with beside(server):
        handle = await work.enqueue()
        store = runtime_of(client).store
        find, asked = store.find, []

        async def counted(query: Any) -> Any:
            if isinstance(query, Runs):
                asked.append(query)
            return await find(query)

        store.find = counted  # type: ignore[method-assign]  # only counted
        assert await handle.result(timeout=WAIT) == 7
        looks = len(asked)
        assert 3 < looks <= 0.35 / 0.02 + 10
        await asyncio.sleep(0.3)
        assert len(asked) == looks
    await client.close()
