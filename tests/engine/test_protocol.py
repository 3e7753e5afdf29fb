"""The small rules on which the big promises rest: each is here because nothing else saw it broken.

`tools/mutants.py` breaks them one by one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mainspring import Context, Mainspring, RunScheduled, State
from mainspring.backends.memory.store import MemoryStore
from mainspring.backends.sqlite import SqliteStore
from mainspring.engine.loop import Loop
from mainspring.engine.work.worker import Worker
from mainspring.executors.thread import ThreadExecutor
from mainspring.model.events import FiresElided, RunHandedBack, StaleResultRejected
from mainspring.model.outcome import HandedBack, Outcome, Succeeded
from mainspring.ports.executor import Attempt, HeldRun
from mainspring.ports.store import Agenda, Offer, Runs
from mainspring.ports.threads import SystemThreads
from mainspring.testing import Travel, VirtualClock, VirtualTime, manual
from mainspring.testing.contract.bench import DEFAULT_LANE
from mainspring.testing.contract.factories import T0 as FACTORY_T0
from mainspring.testing.contract.factories import Ids, enqueue_change, finish_change, make_run
from tests.stored_rows import stored

START = "2026-03-02T08:00:00Z"
T0 = 1_772_438_400_000


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL, "mainspring.engine"):
        yield


def worker_of(t: Travel) -> Worker:
    assert t.runtime.worker is not None
    return t.runtime.worker


async def slowly(t: Travel, verb: str, seconds: float) -> None:
    """From here on the answer of a verb takes `seconds` to come; what it did is done at once."""
    store: Any = t.runtime.store
    original = getattr(store, verb)

    async def late(*args: Any, **kwargs: Any) -> Any:
        answer = await original(*args, **kwargs)
        await asyncio.sleep(seconds)
        return answer

    setattr(store, verb, late)


# ── leases ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.tampers  # the run is made past the rules
async def test_a_lease_does_not_end_because_the_wall_clock_is_set(kind: str, tmp_path: Path) -> None:
    clock, ids = VirtualClock(T0), Ids()
    store = MemoryStore(clock) if kind == "memory" else SqliteStore(str(tmp_path / "ledger.db"), clock)
    await store.open()
    await store.apply([enqueue_change(ids, make_run(ids))])
    (claim,) = (await store.claim(Offer("w1", (DEFAULT_LANE,), ("t",), 30_000), 1)).claims
    clock.step += 3_600_000
    assert (await store.due(Agenda.EXPIRED, 10)).runs == ()
    assert (await store.renew("w1", [(claim.run.id, 1)], 30_000)).kept == {claim.run.id}
    clock.step -= 7_200_000
    clock.move_to(31.0)
    assert [run.id for run in (await store.due(Agenda.EXPIRED, 10)).runs] == [claim.run.id]
    await store.close()


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.tampers  # the run is made past the rules
async def test_a_success_is_refused_when_another_process_decided_meanwhile(taken: bool, tmp_path: Path) -> None:
    """A store remembers what was claimed through it, and must not believe its memory."""
    ids, offer = Ids(), Offer("w1", (DEFAULT_LANE,), ("t",), 10_000)
    mine, theirs = (SqliteStore(str(tmp_path / "ledger.db")) for _ in range(2))
    await mine.open()
    await theirs.open()
    await mine.apply([enqueue_change(ids, make_run(ids))], now=FACTORY_T0)
    (claim,) = (await mine.claim(offer, 1, now=FACTORY_T0)).claims
    await theirs.apply([finish_change(ids, claim.run, State.WAITING)], now=FACTORY_T0 + 20_000)
    if taken:
        await theirs.claim(replace(offer, owner="w2"), 1, now=FACTORY_T0 + 20_000)
    applied = await mine.apply([finish_change(ids, claim.run)], now=FACTORY_T0 + 20_001)
    assert [result.status for result in applied.results] == ["refused"]
    rows = await mine.find(Runs(id=claim.run.id))
    assert [(run.state, run.epoch) for run in rows] == [(State.RUNNING, 2) if taken else (State.WAITING, 1)]
    await mine.close()
    await theirs.close()


async def test_a_claim_that_was_answered_too_late_is_not_begun() -> None:
    """The lease runs from when the store gave it, so trust counts from before the claim was sent."""
    ms = Mainspring("memory://", lease_ttl="30s")
    began: list[int] = []

    @ms.task
    async def work(ctx: Context) -> None:
        began.append(ctx.attempt)

    async with manual(ms, START) as t:
        handle = await work.enqueue()
        await slowly(t, "claim", 28)
        claiming = asyncio.ensure_future(worker_of(t).run_once())
        await t.advance("28s")
        await claiming
        await t.settle()
        assert began == []
        assert await handle.state() is State.WAITING
        events = await ms.events(types=[RunHandedBack])
        assert [event.reason for event in events if isinstance(event, RunHandedBack)] == ["not_begun"]


async def test_a_thread_begins_nothing_past_the_trust_deadline() -> None:
    ms, clock = Mainspring("memory://"), VirtualClock(T0)
    began: list[HeldRun] = []
    ended: asyncio.Queue[Outcome] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    @ms.task
    def work() -> None: ...

    def done(held: HeldRun, outcome: Outcome) -> None:
        loop.call_soon_threadsafe(ended.put_nowait, outcome)

    executor = ThreadExecutor(SystemThreads(), clock, done, loop)
    handler = replace(work.handler(), call_blocking=began.append)
    run = make_run(Ids())
    executor.start([HeldRun(Attempt(run, None, handler, None), clock.boot())])
    assert await ended.get() == HandedBack("not_begun")
    executor.start([HeldRun(Attempt(run, None, handler, None), clock.boot() + 1)])
    assert await ended.get() == Succeeded()
    await executor.close()
    assert len(began) == 1


async def test_a_renewal_that_was_answered_late_is_trusted_from_when_it_was_sent() -> None:
    ms = Mainspring("memory://", lease_ttl="30s")
    go_on = asyncio.Event()

    @ms.task
    async def work() -> None:
        await go_on.wait()

    async with manual(ms, START) as t:
        handle = await work.enqueue()
        await worker_of(t).run_once()
        await t.advance("10s")
        await slowly(t, "renew", 25)
        beating = asyncio.ensure_future(worker_of(t).heart.run_once())  # the lease ends at 40 s, trust at 37 s
        await t.advance("25s")
        await beating
        await t.advance("10s")
        go_on.set()
        await t.advance("26s")
        notes = await ms.events(run=handle.id, types=[StaleResultRejected])
        assert len(notes) == 1
        assert await handle.state() is State.RUNNING  # until an instance rescues it


async def test_past_the_trust_deadline_the_store_is_asked_before_a_result_is_recorded() -> None:
    ms = Mainspring("memory://", lease_ttl="30s")
    go_on = asyncio.Event()

    @ms.task
    async def work() -> str:
        await go_on.wait()
        return "done"

    async with manual(ms, START) as t:
        in_time, too_late = await work.enqueue(), await work.enqueue()
        store: Any = t.runtime.store
        await worker_of(t).run_once()
        await t.advance("28s")  # past the deadline, within the lease
        store._runs[too_late.id] = replace(store._runs[too_late.id], lease_until=0)
        go_on.set()
        await t.settle()
        assert await in_time.result() == "done"
        assert await too_late.state() is State.RUNNING
        assert [e.run_id for e in await ms.events(types=[StaleResultRejected])] == [too_late.id]


async def test_a_result_that_the_store_refuses_is_noted() -> None:
    ms = Mainspring("memory://", lease_ttl="30s")
    go_on = asyncio.Event()

    @ms.task
    async def work() -> None:
        await go_on.wait()

    async with manual(ms, START) as t:
        handle = await work.enqueue()
        await worker_of(t).run_once()
        await t.settle()
        store: Any = t.runtime.store
        store._runs[handle.id] = replace(store._runs[handle.id], lease_until=0)  # its clock runs ahead of ours
        await t.runtime.settler.rescue()
        go_on.set()
        await t.settle()
        assert await handle.state() is State.WAITING
        notes = await ms.events(run=handle.id, types=[StaleResultRejected])
        assert [(n.epoch, n.attempt, n.outcome) for n in notes if isinstance(n, StaleResultRejected)] == [
            (1, 1, "Succeeded")
        ]


async def test_a_run_whose_worker_died_gives_its_place_at_the_gate_back() -> None:
    ms = Mainspring("memory://", lease_ttl="30s")
    began: list[int] = []

    @ms.task(limit=1)
    async def work(ctx: Context) -> None:
        began.append(ctx.attempt)
        await asyncio.Event().wait()

    async with manual(ms, START) as t:
        await work.enqueue()
        await worker_of(t).run_once()
        await t.advance("31s")
        await t.runtime.settler.rescue()
        await worker_of(t).run_once()
        await t.settle()
        assert began == [1, 2]


# ── planning and waiting ───────────────────────────────────────────────────


async def test_a_fire_is_known_by_when_it_is_due_not_by_when_it_was_planned() -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work() -> None: ...

    async with manual(ms, START) as t:
        await ms.schedule("often", work, every="10s")
        await t.advance("13s")
        await t.runtime.settler.plan()
        fire = T0 + 10_000
        assert [(r.fire_time, r.fire_key, r.due_at) for r in await stored(ms, ms.runs())] == [(fire, str(fire), fire)]
        schedule = await stored(ms, ms.get("often"))
        assert (schedule.cursor, schedule.next_at) == (T0 + 10_000, T0 + 20_000)


@pytest.mark.parametrize("verb", ["delete", "pause", "update"])
async def test_what_is_due_is_settled_before_a_schedule_changes(verb: str) -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work() -> None: ...

    async with manual(ms, START) as t:
        await ms.schedule("often", work, every="1s", missed="replay_all", overlap="queue_all")
        await t.advance("10s")
        assert await ms.events(types=[RunScheduled, FiresElided]) == []
        if verb == "delete":
            await ms.delete("often")
        elif verb == "pause":
            await ms.pause("often")
        else:
            await ms.update("often", every="1h")
        assert len(await ms.events(types=[RunScheduled])) == 10


async def test_no_loop_sleeps_longer_than_the_poll_interval() -> None:
    looks: list[float] = []
    clock = VirtualClock(T0)
    time = VirtualTime(clock)

    class Looking(Loop):
        name = "looking"

        async def run_once(self) -> float:
            looks.append(clock.monotonic())
            return 3_600.0

    time.attach()
    try:
        looking = Looking(poll=1.0)
        looking.start()
        await time.advance(5.5)
        await looking.stop()
    finally:
        time.detach()
    assert looks == pytest.approx([0, 1, 2, 3, 4, 5])
