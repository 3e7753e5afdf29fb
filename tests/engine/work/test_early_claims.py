"""Claims a moment ahead, when there is much to do: no handler is called before its time, and nothing is lost by it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainspring import Context, Every, Mainspring
from mainspring.backends.memory.store import MemoryStore
from mainspring.engine import lookahead
from mainspring.engine.commit import batcher
from mainspring.engine.lookahead import PLAN_AHEAD_MS
from mainspring.engine.work.early_claims import MAX_DEFER_SECONDS, EarlyClaims
from mainspring.engine.work.slots import Slots
from mainspring.ledger.account import ledger
from mainspring.model.events import RunHandedBack, RunStarted
from mainspring.model.run import Run, State
from mainspring.ports.executor import Attempt, Handler, HeldRun
from mainspring.ports.store import Events, Runs
from mainspring.rules.lifecycle import decide
from mainspring.rules.run_commands import Expire
from mainspring.testing.time_travel import Travel, travel
from mainspring.testing.virtual_time import VirtualClock
from tests.engine.support import START, beside
from tests.stored_rows import stored

MANY = 40
Begun = list[tuple[str, int]]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few fires make a crowd."""
    monkeypatch.setattr(lookahead, "BUSY_FIRES_PER_SECOND", 1.0)


def an_app(store: MemoryStore, **options: object) -> tuple[Mainspring, Begun]:
    ms = Mainspring(store=store)
    begun: Begun = []

    @ms.task(name="work", timeout=None, **options)  # type: ignore[call-overload]  # the options of one test each
    async def work(ctx: Context) -> None:
        begun.append((ctx.run_id, ms.clock.now()))

    return ms, begun


@asynccontextmanager
async def crowded(ms: Mainspring, every: str = "1s") -> AsyncIterator[Travel]:
    """Forty schedules, 25 ms apart, three seconds on."""
    async with travel(ms, START) as t:
        for number in range(MANY):
            anchor = t.now.replace(microsecond=number * 25_000)
            await ms.schedule(f"s{number}", ms.tasks["work"], every=Every(every, anchor=anchor))
        await t.advance("3s")
        yield t


async def held(t: Travel) -> list[Run]:
    """Runs that a worker holds and whose time has not come."""
    return [run for run in await t.runs() if run.state is State.RUNNING and run.ready_at > t.clock.now()]


async def until_held(t: Travel, least: int = 3) -> list[Run]:
    for _ in range(100):
        found = await held(t)
        if len(found) >= least:
            return found
        await t.advance("5ms")
    raise AssertionError("nothing is claimed ahead of its time")


async def test_runs_are_claimed_ahead_and_begin_at_their_time() -> None:
    store = MemoryStore()
    ms, begun = an_app(store)
    async with crowded(ms) as t:
        claims = t.runtime.metrics()["claims_total"]
        seen = 0
        for _ in range(100):
            await t.advance("20ms")
            early = await held(t)
            seen += len(early)
            assert all(run.ready_at <= t.clock.now() + PLAN_AHEAD_MS for run in early)
        assert seen > 100
        assert t.runtime.metrics()["claims_total"] - claims < 60, "two seconds of 40 fires"
        await t.advance("1s")
        due = {run.id: run.ready_at for run in await t.runs()}
        assert len(begun) == len({run_id for run_id, _ in begun})
        assert all(0 <= at - due[run_id] <= 2 for run_id, at in begun if at > t.clock.now() - 2_500)
        book = await ledger(store, t.clock.now())
        assert (book.behind, book.unexplained, book.skipped) == (0, 0, {})
        starts = [e for e in await store.find(Events(limit=100_000)) if isinstance(e, RunStarted)]
        assert all(e.at >= due[e.run_id or ""] for e in starts)


async def test_outcomes_share_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    ms, begun = an_app(store)
    async with crowded(ms) as t:
        commits = 0
        apply = store.apply

        async def counted(changes: Sequence[object], **options: object) -> object:
            nonlocal commits
            commits += 1
            return await apply(changes, **options)  # type: ignore[arg-type]  # passed on as it came

        monkeypatch.setattr(store, "apply", counted)
        before = len(begun)
        await t.advance("2s")
        assert len(begun) - before >= 75
        assert commits <= 30
        await t.advance(f"{int(batcher.LINGER_SECONDS * 1000) + 50}ms")
        ended = {run.id for run in await t.runs() if run.state is State.SUCCEEDED}
        assert all(run_id in ended for run_id, at in begun if at < t.clock.now() - batcher.LINGER_SECONDS * 1000 - 50)


async def test_a_steady_crowd_costs_one_commit_for_each_look_ahead() -> None:
    ms, begun = an_app(MemoryStore())
    async with crowded(ms) as t:
        await t.advance("2s")
        commits = 0
        apply = t.runtime.store.apply

        async def counted(changes: Sequence[object], **options: object) -> object:
            nonlocal commits
            commits += 1
            return await apply(changes, **options)  # type: ignore[arg-type]  # passed on as it came

        t.runtime.store.apply = counted  # type: ignore[method-assign,assignment]
        before = len(begun)
        await t.advance("6s")
        assert len(begun) - before >= 5 * MANY
        assert commits <= 6 * 1_000 / (PLAN_AHEAD_MS * lookahead.QUERY_INTERVAL_PERCENT // 100) + 5, (
            "plans, claims and successes go together"
        )


@pytest.mark.parametrize("every", ["50ms", "100ms", "320ms"])
async def test_a_fire_is_not_skipped_because_the_last_success_waits_for_company(every: str) -> None:
    store = MemoryStore()
    ms, _ = an_app(store)
    async with crowded(ms) as t:
        await ms.schedule("quick", ms.tasks["work"], every=every)
        await t.advance("5s")
        book = await ledger(store, t.clock.now())
        assert (book.behind, book.unexplained, book.skipped) == (0, 0, {})


async def test_at_a_stop_what_is_held_goes_back_and_keeps_its_time() -> None:
    store = MemoryStore()
    ms, begun = an_app(store)
    async with crowded(ms) as t:
        early = await until_held(t)
        given = {run.id for run in early}
        assert given
        worker = t.runtime.worker
        assert worker is not None
        draining = asyncio.ensure_future(worker.drain(5.0))
        await t.advance("20ms")
        events = await store.find(Events(limit=100_000))
        back = {e.run_id for e in events if isinstance(e, RunHandedBack) and e.reason == "not_begun"}
        assert given <= back, "at once, and not when patience has ended"
        await t.advance("200ms")
        await draining
    assert not given & {run_id for run_id, _ in begun}
    rows = {run.id: run for run in await store.find(Runs(limit=10_000))}
    assert all(rows[run.id].ready_at == run.ready_at for run in early)
    assert {rows[run_id].state for run_id in given} == {State.WAITING}


async def test_a_run_that_is_cancelled_while_it_is_held_is_not_called() -> None:
    ms, begun = an_app(MemoryStore())
    async with crowded(ms) as t:
        run = max(await until_held(t), key=lambda run: run.ready_at)
        await ms.cancel(run.id)
        await t.advance("2s")
        assert run.id not in {run_id for run_id, _ in begun}
        assert {r.id: r.state for r in await t.runs()}[run.id] is State.CANCELLED


async def test_a_clock_that_is_set_back_delays_no_early_run() -> None:
    ms, begun = an_app(MemoryStore())
    async with crowded(ms) as t:
        early = await until_held(t)
        t.step_wall_clock(-30_000)
        await t.advance(f"{PLAN_AHEAD_MS + 10}ms")
        assert {run.id for run in early} <= {run_id for run_id, _ in begun}


async def test_what_must_run_at_most_once_is_not_held() -> None:
    ms, begun = an_app(MemoryStore(), recovery="fail")
    async with crowded(ms) as t:
        for _ in range(50):
            await t.advance("20ms")
            assert await held(t) == []
        assert len(begun) > 100


async def test_a_task_with_a_limit_is_not_held() -> None:
    ms, begun = an_app(MemoryStore(), limit=2)
    async with crowded(ms) as t:
        for _ in range(50):
            await t.advance("20ms")
            assert await held(t) == []
        assert len(begun) > 100


async def test_urgent_work_finds_a_slot_beside_what_is_held() -> None:
    ms = Mainspring(store=MemoryStore(), concurrency=4)
    begun: Begun = []

    @ms.task(name="work", timeout=None)
    async def work(ctx: Context) -> None:
        begun.append((ctx.run_id, ms.clock.now()))

    @ms.task(name="now", priority="critical")
    async def now() -> None: ...

    async with crowded(ms) as t:
        await until_held(t)
        handle = await now.enqueue()
        await t.advance("2ms")
        assert (await handle.run()).state is State.SUCCEEDED


def test_a_lease_that_ends_before_the_time_of_its_run_does_not_make_it_early() -> None:
    run = Run(id="r", task="t", state=State.RUNNING, epoch=1, attempt=1, ready_at=5_000)
    (event,) = decide(run, Expire(max_crashes=3, recovery="retry"), 4_700)
    assert event.ready_at == 5_000  # type: ignore[union-attr]  # it is a LeaseExpired
    (event,) = decide(run, Expire(max_crashes=3, recovery="retry"), 9_000)
    assert event.ready_at == 9_000  # type: ignore[union-attr]


# ── by itself ──────────────────────────────────────────────────────────────


async def _nothing(held: HeldRun) -> None: ...


def held_run(ready_at: int) -> HeldRun:
    handler = Handler("t", "async", _nothing, lambda attempt: None, lambda value: None)
    return HeldRun(Attempt(Run(id=f"r{ready_at}", task="t", ready_at=ready_at), None, handler, None), 1 << 60)


class Outcomes:
    """An inbox of outcomes that counts how often it is drained."""

    def __init__(self) -> None:
        self.drained = 0
        self.deferring = False

    def drain(self) -> None:
        self.drained += 1

    def set_deferring(self, *, deferring: bool) -> None:
        self.deferring = deferring


@pytest.mark.parametrize("spare", [None, False, True])
async def test_all_are_handed_over_unless_every_slot_is_taken(spare: bool | None) -> None:
    clock = VirtualClock(1_000_000)
    begun: list[tuple[list[str], list[str]]] = []

    def begin(due: Sequence[HeldRun], soon: Sequence[HeldRun]) -> None:
        begun.append(([held.attempt.run.id for held in due], [held.attempt.run.id for held in soon]))

    outcomes = Outcomes()
    early = EarlyClaims(clock, outcomes, lambda: spare, begin)
    now = clock.now()
    for wait in (30, 10, 20, 500):
        early.add(held_run(now + wait))
    early.dispatch_due()
    in_order = [f"r{now + wait}" for wait in (10, 20, 30)]
    in_order.append(f"r{now + 500}")
    assert begun == [([], in_order if spare else [])]
    assert outcomes.deferring is bool(spare)
    assert {held.attempt.run.id for held in early.remove_all()} == (set() if spare else set(in_order))
    assert not outcomes.deferring
    assert outcomes.drained == 2


async def test_outcomes_of_early_runs_wait_for_the_next_dispatch_unless_runs_wait_for_slots() -> None:
    clock = VirtualClock(1_000_000)
    spare: list[bool | None] = [True]
    outcomes = Outcomes()

    def begin(due: Sequence[HeldRun], soon: Sequence[HeldRun]) -> None:
        for held in soon:  # the handlers' loop takes it at once, and its time with it
            held.starts_at = 0.0

    early = EarlyClaims(clock, outcomes, lambda: spare[0], begin)
    for wait in (40, 60, 90):
        early.add(held_run(clock.now() + wait))
    early.dispatch_due()
    early.add(held_run(clock.now() + 50))
    deferred = []
    for spare[0] in (False, None):
        early.dispatch_due()
        deferred.append(outcomes.deferring)
    assert deferred == [True, False], "no slot is free; first no run waits for one, then a run does"
    assert outcomes.drained == 3
    assert len(early.remove_all()) == 1


async def test_outcomes_of_early_runs_are_collected_while_more_runs_are_to_come() -> None:
    ms, begun = an_app(MemoryStore())
    async with crowded(ms) as t:
        await until_held(t)
        for _ in range(40):
            await t.advance("25ms")
            unheard = {run.id: run for run in await t.runs() if run.state is State.RUNNING}
            least = t.clock.now() - (MAX_DEFER_SECONDS + batcher.LINGER_SECONDS) * 1000 - 5
            assert not [run_id for run_id, at in begun if run_id in unheard and at < least]


def test_a_slot_is_taken_once_and_never_by_a_run_that_is_done() -> None:
    slots = Slots(1)
    first, second, third = (held_run(number) for number in range(3))
    assert slots.take(first)
    assert not slots.take(second)
    assert not slots.withhold(first)
    assert slots.withhold(second)
    slots.leave(first)
    slots.leave(first)
    assert (slots.taken, first.has_slot) == (0, False)
    assert not slots.take(second), "it was withheld"
    assert slots.take(third)


@pytest.mark.parametrize("slots", [1, 2])
async def test_no_more_run_at_once_than_there_are_slots_though_more_are_handed_over(slots: int) -> None:
    ms = Mainspring(store=MemoryStore(), concurrency=slots)
    running: set[str] = set()
    begun: Begun = []
    most = 0

    @ms.task(name="work", timeout=None)
    async def work(ctx: Context) -> None:
        nonlocal most
        running.add(ctx.run_id)
        begun.append((ctx.run_id, ms.clock.now()))
        most = max(most, len(running))
        # Quick for a while, so that runs are held; then each takes longer than there is time for.
        await asyncio.sleep(0.001 if len(begun) < 3 * MANY else 0.2)
        running.discard(ctx.run_id)

    async with crowded(ms) as t:
        await t.advance("8s")
        worker = t.runtime.worker
        assert worker is not None
        assert worker.slots.taken <= slots
    assert most == slots
    assert len(begun) > 3 * MANY
    assert len(begun) == len({run_id for run_id, _ in begun})


# ── on threads ─────────────────────────────────────────────────────────────


async def test_the_real_loops_begin_each_at_its_moment(tmp_path: Path) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path}/early.db")
    begun: dict[str, float] = {}
    enough = asyncio.Event()

    @ms.task(name="work", timeout=None)
    async def work(ctx: Context) -> None:
        begun[ctx.run_id] = time.time() * 1000
        if len(begun) >= 120:
            enough.set()

    async with beside(ms):
        await ms.schedule_many(
            work, ({"name": f"s{i}", "trigger": Every("1s", anchor=_anchor(i * 25))} for i in range(MANY))
        )
        async with asyncio.timeout(30):
            await enough.wait()
    runs = {run.id: run for run in await stored(ms, ms.runs(limit=1_000))}
    await ms.close()
    assert all(at >= runs[run_id].ready_at for run_id, at in begun.items())
    assert sum(run.started_at == run.ready_at for run in runs.values()) >= 40, "claimed ahead of their time"


def _anchor(ms: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
