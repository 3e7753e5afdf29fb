"""Planning a moment ahead, when there is much to plan: nothing begins before its time, and nothing else changes."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import Context, Every, Mainspring
from mainspring.app.internals import host_of
from mainspring.backends.memory.store import MemoryStore
from mainspring.engine import lookahead
from mainspring.engine.lookahead import PLAN_AHEAD_MS, Lookahead
from mainspring.ledger.account import ledger
from mainspring.testing.time_travel import Travel, travel
from mainspring.testing.virtual_time import VirtualClock
from tests.engine.support import START

MANY = 40


def an_app(store: MemoryStore) -> tuple[Mainspring, list[tuple[str, int]]]:
    ms = Mainspring(store=store, concurrency=100)
    begun: list[tuple[str, int]] = []

    @ms.task(name="work", executor="loop", timeout=None)
    def work(ctx: Context) -> None:
        begun.append((ctx.run_id, ms.clock.now()))

    @ms.task(name="long", timeout=None)
    async def long() -> None:
        await asyncio.sleep(0.9)

    return ms, begun


async def crowd(ms: Mainspring, t: Travel) -> None:
    """Enough schedules, spread over each second, for planning to look ahead."""
    for number in range(MANY):
        anchor = t.now.replace(microsecond=number * 25_000)
        await ms.schedule(f"s{number}", ms.tasks["work"], every=Every("1s", anchor=anchor))
    await t.advance("3s")


async def early(t: Travel) -> int:
    """Runs that are planned, and whose time has not come."""
    return sum(run.state in ("waiting", "running") and run.due_at > t.clock.now() for run in await t.runs())


async def test_busy_planning_is_ahead_and_nothing_begins_before_its_time() -> None:
    store = MemoryStore()
    ms, begun = an_app(store)
    async with travel(ms, START) as t:
        await crowd(ms, t)
        found = 0
        for _ in range(20):
            await t.advance("50ms")
            found += await early(t)
            assert all(run.due_at <= t.clock.now() + PLAN_AHEAD_MS for run in await t.runs())
        assert found > 20
        due = {run.id: run.due_at for run in await t.runs()}
        assert all(at >= due[run_id] for run_id, at in begun)
        assert max(at - due[run_id] for run_id, at in begun) <= 2
        await t.advance("1s")
        book = await ledger(store, t.clock.now())
        assert (book.behind, book.unexplained, book.skipped) == (0, 0, {})


async def test_a_few_schedules_are_planned_at_their_time() -> None:
    ms, _ = an_app(MemoryStore())
    async with travel(ms, START) as t:
        await ms.schedule("one", ms.tasks["work"], every="1s")
        for _ in range(40):
            await t.advance("100ms")
            assert await early(t) == 0


async def test_planning_goes_back_to_its_time_when_the_crowd_is_gone() -> None:
    ms, _ = an_app(MemoryStore())
    async with travel(ms, START) as t:
        await crowd(ms, t)
        assert await early(t) > 0
        for number in range(1, MANY):
            await ms.delete(f"s{number}")
        await t.advance("3s")
        for _ in range(20):
            await t.advance("100ms")
            assert await early(t) == 0


async def test_a_fire_is_not_skipped_ahead_of_its_time_because_the_last_run_still_runs() -> None:
    store = MemoryStore()
    ms, _ = an_app(store)
    async with travel(ms, START) as t:
        await ms.schedule("tight", ms.tasks["long"], every="1s")
        await crowd(ms, t)
        await t.advance("10s")
        states = [run.state for run in await t.runs("tight")]
        assert len(states) == 13
        assert "skipped" not in states


async def test_a_pause_comes_too_late_for_a_fire_that_is_planned_and_for_no_other() -> None:
    ms, begun = an_app(MemoryStore())
    async with travel(ms, START) as t:
        await crowd(ms, t)
        while not [run for run in await t.runs("s7") if run.due_at > t.clock.now()]:
            await t.advance("25ms")
        await ms.pause("s7")
        planned = len(await t.runs("s7"))
        await t.advance("5s")
        runs = await t.runs("s7")
        assert len(runs) == planned
        assert all(run.state == "succeeded" for run in runs)
        await ms.resume("s7")
        await t.advance("2s")
        book = await ledger(await host_of(ms).call(_store), t.clock.now())
        assert book.unexplained == 0
        assert len(begun) == len({run_id for run_id, _ in begun})


async def _store(runtime: object) -> MemoryStore:
    store = runtime.store  # type: ignore[attr-defined]  # the runtime has one
    assert isinstance(store, MemoryStore)
    return store


@pytest.mark.parametrize(
    ("fires", "ms"),
    [
        (0, 0),
        (lookahead.BUSY_FIRES_PER_SECOND - 1, 0),
        (lookahead.BUSY_FIRES_PER_SECOND, PLAN_AHEAD_MS),
        (1_000, PLAN_AHEAD_MS),
    ],
)
def test_the_rate_decides(fires: float, ms: int) -> None:
    clock = VirtualClock(0)
    ahead = Lookahead(clock)
    clock.move_to(1.0)
    ahead.count(int(fires))
    assert ahead.ms == ms


def test_what_matters_is_looked_at_in_time() -> None:
    ahead = Lookahead(VirtualClock(0))
    assert ahead.next_query_at(1_000, 5_000) == 5_000
    ahead.ms = PLAN_AHEAD_MS
    assert ahead.next_query_at(1_000, 5_000) == 5_000 - PLAN_AHEAD_MS
    assert (
        ahead.next_query_at(1_000, 1_000 + PLAN_AHEAD_MS)
        == 1_000 + PLAN_AHEAD_MS * lookahead.QUERY_INTERVAL_PERCENT // 100
    )  # in steps
    assert ahead.next_query_at(1_000, 1_010) == 1_010  # and never too late


async def test_a_rush_is_seen_at_once_and_its_end_after_a_while() -> None:
    clock = VirtualClock(0)
    ahead = Lookahead(clock)
    for _ in range(5):
        ahead.count(1)
    assert ahead.ms == 0
    ahead.count(1)  # six in no time are more than twenty in a second
    assert ahead.ms == PLAN_AHEAD_MS
    clock.move_to(0.2)
    ahead.count(1)
    assert ahead.ms == PLAN_AHEAD_MS
    clock.move_to(0.4)
    ahead.count(1)  # two in 0.4 s
    assert ahead.ms == 0
