"""Claiming ahead of the free slots: only when work is quick, by priority, and never what a crash would harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import Mainspring, State
from mainspring.engine.work.prefetch import MAX_PREFETCHED, PACES_OF_QUICK_RUNS, PACES_OF_SLOW_RUNS, Prefetch
from mainspring.engine.work.slots import Slots
from mainspring.engine.work.waiting_runs import WaitingRuns
from mainspring.engine.work.worker import Worker
from mainspring.model.events import RunHandedBack
from mainspring.testing import Travel, manual
from mainspring.testing.virtual_time import VirtualClock
from tests.engine.support import START


def test_as_many_as_end_during_two_round_trips() -> None:
    clock = VirtualClock(0)
    ahead = Prefetch(clock)
    for _ in range(50):
        ahead.finished(100)
        began = clock.monotonic()
        clock.move_to(began + 0.1)
        ahead.answered(began)
    assert ahead.queue_size(1_000) == pytest.approx(200, abs=2)
    assert ahead.queue_size(20) == MAX_PREFETCHED
    assert ahead.queue_size(150) == 150


def test_slow_work_is_never_claimed_ahead() -> None:
    clock = VirtualClock(0)
    ahead = Prefetch(clock)
    for _ in range(50):
        ahead.finished(10)  # ten slots of 500 ms work
        began = clock.monotonic() + 0.499
        clock.move_to(began + 0.001)
        ahead.answered(began)
    assert ahead.queue_size(10) == 0


def test_quick_work_is_claimed_by_the_dozen_however_fast_the_store() -> None:
    clock = VirtualClock(0)
    ahead = Prefetch(clock, pace=0.005)
    for _ in range(200):
        ahead.finished(10)
        began = clock.monotonic() + 0.009
        clock.move_to(began + 0.001)
        ahead.answered(began)
    assert ahead.queue_size(10) == pytest.approx(1_000 * 0.005 * PACES_OF_QUICK_RUNS, abs=1)


def test_claims_that_come_in_pairs_and_ends_by_the_handful_do_not_change_the_rate() -> None:
    clock = VirtualClock(0)
    ahead = Prefetch(clock)
    seen = []
    for _ in range(50):
        for wait, ended in ((0.196, 20), (0.004, 0), (0.1, 8), (0.1, 12)):
            ahead.finished(ended)
            clock.move_to(clock.monotonic() + wait)
            ahead.answered(clock.monotonic())
            seen.append(ahead.expected_ends(1.0))
    assert min(seen[60:]) >= 90
    assert max(seen[60:]) <= 110


def test_the_first_measurement_is_believed() -> None:
    clock = VirtualClock(0)
    ahead = Prefetch(clock)
    assert not ahead.is_measured
    ahead.finished(15)
    clock.move_to(0.15)
    ahead.answered(0.149)
    assert (ahead.is_measured, ahead.expected_ends(1.0)) == (True, 100)


def test_slower_work_is_not_for_what_is_urgent_must_not_wait_behind_it() -> None:
    clock = VirtualClock(0)
    ahead = Prefetch(clock, pace=0.005)
    for _ in range(200):
        ahead.finished(2)  # ten slots of 50 ms work
        began = clock.monotonic() + 0.009
        clock.move_to(began + 0.001)
        ahead.answered(began)
    assert ahead.queue_size(10) == pytest.approx(200 * 0.005 * PACES_OF_SLOW_RUNS, abs=1)
    assert ahead.queue_size(3) == pytest.approx(200 * 0.005 * PACES_OF_QUICK_RUNS, abs=1)


@asynccontextmanager
async def one_slot(
    monkeypatch: pytest.MonkeyPatch, **task: Any
) -> AsyncIterator[tuple[Travel, Worker, Any, list[str]]]:
    """A worker with one slot that claims three runs ahead of it; a task that ends when it is told."""
    monkeypatch.setattr(Prefetch, "queue_size", lambda self, slots: 3)
    ms = Mainspring("memory://", concurrency=1)
    began: list[str] = []

    @ms.task(**task)
    async def work(name: str) -> None:
        began.append(name)
        await asyncio.sleep(10)

    async with manual(ms, START) as t:
        worker = t.runtime.worker
        assert worker is not None
        yield t, worker, work, began


async def test_the_local_queue_is_by_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_slot(monkeypatch) as (t, worker, work, began):
        for name in ("first", "low"):
            await work.using(priority="low").enqueue(name)
        await worker.run_once()
        await work.using(priority="critical").enqueue("urgent")
        assert len(worker.running) == 2
        await t.settle()
        assert began == ["first"]
        await worker.run_once()  # no slot is free: nothing is claimed only to wait
        assert len(worker.running) == 2
        await t.advance("500ms")
        (held,) = [a for a in worker.running.values() if a.has_slot]
        worker.cancel(held.attempt.run.id, "make room")
        await t.settle()
        assert began == ["first", "low"]
        monkeypatch.undo()
        for held in list(worker.running.values()):
            worker.cancel(held.attempt.run.id, "enough")
        await t.settle()


async def test_what_finds_no_slot_for_a_second_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_slot(monkeypatch) as (t, worker, work, began):
        handles = [await work.enqueue(f"{i}") for i in range(3)]
        await worker.run_once()
        await t.settle()
        assert ([await h.state() for h in handles], began) == ([State.RUNNING] * 3, ["0"])
        await t.advance("999ms")
        await worker.run_once()
        assert len(worker.running) == 3
        await t.advance("1ms")
        await worker.run_once()
        await t.settle()
        assert [await h.state() for h in handles] == [State.RUNNING, State.WAITING, State.WAITING]
        back = [e for e in await t.app.events(types=[RunHandedBack]) if isinstance(e, RunHandedBack)]
        assert [(e.reason, e.began) for e in back] == [("not_begun", False)] * 2
        assert [(await h.run()).failures for h in handles] == [0, 0, 0]
        worker.cancel(handles[0].id, "enough")
        await t.settle()


async def test_a_run_that_must_not_be_repeated_is_not_claimed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_slot(monkeypatch, recovery="fail") as (t, worker, work, began):
        handles = [await work.enqueue(f"{i}") for i in range(3)]
        await worker.run_once()
        await t.settle()
        assert [await h.state() for h in handles] == [State.RUNNING, State.WAITING, State.WAITING]
        worker.cancel(handles[0].id, "enough")
        await t.settle()
        assert began == ["0"]


async def test_one_such_run_among_others_goes_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_slot(monkeypatch) as (t, worker, work, _):
        first, other = await work.enqueue("0"), await work.enqueue("1")
        once = await work.using(recovery="fail").enqueue("2")
        await worker.run_once()
        await t.settle()
        assert [await h.state() for h in (first, other, once)] == [State.RUNNING, State.RUNNING, State.WAITING]
        for handle in (first, other):
            worker.cancel(handle.id, "enough")
        await t.settle()


async def test_a_waiting_attempt_that_is_cancelled_ends_without_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_slot(monkeypatch) as (t, worker, work, began):
        handles = [await work.enqueue(f"{i}") for i in range(2)]
        await worker.run_once()
        await t.app.cancel(handles[1].id)
        await t.settle()
        assert (await handles[1].state(), began) == (State.CANCELLED, ["0"])
        worker.cancel(handles[0].id, "enough")
        await t.settle()
        assert began == ["0"]


async def test_shutting_down_hands_back_the_unbegun_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_slot(monkeypatch) as (t, worker, work, began):
        handles = [await work.enqueue(f"{i}") for i in range(3)]
        await worker.run_once()
        await t.settle()
        draining = asyncio.ensure_future(worker.drain(60.0))
        await t.settle()
        assert [await h.state() for h in handles] == [State.RUNNING, State.WAITING, State.WAITING]
        await t.advance("10s")
        await draining
        assert (await handles[0].state(), began) == (State.SUCCEEDED, ["0"])


async def test_nothing_is_claimed_beside_a_run_on_its_last_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    async with one_slot(monkeypatch, max_crashes=3) as (t, worker, work, _):
        worker._settings = replace(worker._settings, concurrency=10)
        risky = await work.enqueue("risky")
        for _ in range(2):
            await worker.run_once()
            await t.settle()
            worker.running.clear()  # the process died
            worker.slots, worker._waiting = Slots(10), WaitingRuns()
            worker._last_chances.clear()
            await t.advance("31s")
            await t.runtime.settler.rescue()
        assert (await risky.run()).crashes == 2
        later = [await work.enqueue(f"{i}") for i in range(3)]
        await worker.run_once()
        await worker.run_once()
        assert [await h.state() for h in (risky, *later)] == [State.RUNNING] + [State.WAITING] * 3
        worker.cancel(risky.id, "survived")
        await t.settle()
        await worker.run_once()
        assert [await h.state() for h in later] == [State.RUNNING] * 3
        await t.advance("10s")
