"""The loops themselves: start and stop, patience with a failing store, the wall clock that steps, rescue by lease."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from mainspring import Context, Mainspring, Retry
from mainspring.backends.memory.store import MemoryStore
from mainspring.engine.loop import Loop
from mainspring.model.change import Change
from mainspring.model.errors import StoreUnavailable
from mainspring.model.events import ClockStepped, LeaseExpired, RunFailed, RunHandedBack, RunLost
from mainspring.model.run import State
from mainspring.ports.store import Applied, Claimed, ClaimRequest, Offer, Schedules
from mainspring.runtime.engine_thread import ThreadLoop
from mainspring.testing import manual, travel


class Counting(Loop):
    name = "counting"

    def __init__(self) -> None:
        super().__init__(poll=3600)
        self.count = 0
        self.fail = False

    async def run_once(self) -> float:
        self.count += 1
        if self.fail:
            raise StoreUnavailable("away")
        return 3600.0


async def test_five_hundred_starts_and_stops() -> None:
    service = Counting()
    for _ in range(500):
        service.start()
        service.start()
        await asyncio.sleep(0)
        await service.stop()
        await service.stop()
    assert service.count == 500


async def test_a_wake_between_two_looks_is_not_lost() -> None:
    service = Counting()
    service.start()
    await asyncio.sleep(0)
    assert service.count == 1
    service.wake()
    while service.count < 2:  # noqa: ASYNC110 - the loop under test runs meanwhile
        await asyncio.sleep(0)
    await service.stop()


class Swallowing(Counting):
    """Its store's driver eats the cancellation that comes with an answer, as `asyncio.wait_for` does before 3.12."""

    async def run_once(self) -> float:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        return await super().run_once()


async def test_a_driver_that_swallows_the_cancellation_does_not_keep_a_loop_from_stopping() -> None:
    service = Swallowing()
    service.start()
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await service.stop()
    assert service.count == 1


class Flaky(MemoryStore):
    """Fails for a while, as a full disk does."""

    down = False

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: int | None = None
    ) -> Applied:
        if self.down:
            raise StoreUnavailable("the disk is full")
        return await super().apply(changes, claim_request=claim_request, now=now)

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[str] = (), now: int | None = None) -> Claimed:
        if self.down:
            raise StoreUnavailable("the disk is full")
        return await super().claim(offer, limit, ids=ids, now=now)


async def test_a_store_that_fails_for_a_minute_delays_fires_and_loses_none() -> None:
    store = Flaky()
    ms = Mainspring(store=store)
    done = []

    @ms.every("10s", missed="replay_all", overlap="allow_parallel")
    async def tick() -> None:
        done.append(1)

    async with travel(ms, "2026-01-01T00:00Z") as t:
        await t.advance("25s")
        store.down = True
        await t.advance("60s")
        assert len(done) == 2
        store.down = False
        await t.advance("35s")
        assert len(done) == 12
        assert len(await t.fires("tick")) == 12


async def test_an_outcome_that_could_not_be_stored_is_stored_when_the_store_is_back() -> None:
    store = Flaky()
    ms = Mainspring(store=store)

    @ms.task
    async def slow() -> int:
        await asyncio.sleep(5)
        return 7

    async with travel(ms, "2026-01-01T00:00Z") as t:
        handle = await slow.enqueue()
        await t.advance("2s")
        store.down = True
        await t.advance("8s")
        assert await handle.state() is State.RUNNING
        store.down = False
        await t.advance("10s")
        run = await handle.run()
        assert (run.state, run.result, run.attempt) == (State.SUCCEEDED, 7, 1)


async def test_a_forward_step_of_the_wall_clock_is_noted_and_planning_waits_five_seconds() -> None:
    ms = Mainspring("memory://")

    @ms.every("1m", missed="skip")
    async def tick() -> None: ...

    async with travel(ms, "2026-01-01T00:00Z") as t:
        await t.advance("90s")
        assert len(await t.fires("tick")) == 1
        t.step_wall_clock(3_600_000)
        t.runtime.settler.wake()
        await t.advance("4s")
        assert len(await t.fires("tick")) == 1
        t.step_wall_clock(-3_600_000)  # and back again: nothing was planned by the wrong time
        await t.advance("5m")
        steps = await ms.events(types=[ClockStepped])
        assert [event.step_ms for event in steps if isinstance(event, ClockStepped)] == [3_600_000, -3_600_000]
        fires = await t.fires("tick")
        assert len(fires) == len(set(fires)) == 6


async def test_a_backward_step_delays_no_running_lease() -> None:
    ms = Mainspring("memory://")

    @ms.task(timeout=None)
    async def long() -> str:
        await asyncio.sleep(120)
        return "done"

    async with travel(ms, "2026-01-01T00:00Z") as t:
        handle = await long.enqueue()
        await t.advance("10s")
        t.step_wall_clock(-86_400_000)
        await t.advance("2m")
        run = await handle.run()
        assert (run.state, run.attempt) == (State.SUCCEEDED, 1)


async def test_a_dead_workers_run_comes_back_after_its_lease_and_not_before() -> None:
    ms = Mainspring("memory://", lease_ttl="30s")

    @ms.task
    async def work() -> None: ...

    async with manual(ms, "2026-01-01T00:00Z") as t:
        handle = await work.enqueue()
        runtime = t.runtime
        claimed = await runtime.store.claim(Offer("dead", ("default/default",), ("work",), 30_000), 1)
        assert len(claimed.claims) == 1
        await t.advance("29s")
        await runtime.settler.rescue()
        assert await handle.state() is State.RUNNING
        await t.advance("2s")
        await runtime.settler.rescue()
        run = await handle.run()
        assert (run.state, run.crashes, run.failures) == (State.WAITING, 1, 0)
        assert [type(e) for e in await ms.events(run=handle.id, types=[LeaseExpired])] == [LeaseExpired]


async def test_a_task_that_kills_its_worker_ends_in_the_dead_letters(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://")

    @ms.task(max_crashes=3)
    async def poison() -> None: ...

    async with manual(ms, "2026-01-01T00:00Z") as t:
        handle = await poison.enqueue()
        for _ in range(3):
            await t.runtime.store.claim(Offer("dead", ("default/default",), ("poison",), 30_000), 1)
            await t.advance("31s")
            await t.runtime.settler.rescue()
        run = await handle.run()
        assert (run.state, run.dead, run.reason, run.attempt) == (State.FAILED, True, "crashed", 3)
        assert [type(e) for e in await ms.events(run=handle.id, types=[RunFailed])] == [RunFailed]
    lines = [(one.levelname, one.getMessage()) for one in caplog.records if "stopped renewing" in one.getMessage()]
    assert [level for level, _ in lines] == ["WARNING", "WARNING", "ERROR"]
    assert "the run is now waiting (" in lines[0][1]
    assert (
        "the run is now failed after 3 crashes, as many as max_crashes allows; "
        f"run it again with ms.retry({handle.id!r}) (run {handle.id}, attempt 3)" in lines[2][1]
    )


async def test_recovery_fail_means_at_most_once(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://")

    @ms.task(recovery="fail")
    async def once() -> None: ...

    async with manual(ms, "2026-01-01T00:00Z") as t:
        handle = await once.enqueue()
        await t.runtime.store.claim(Offer("dead", ("default/default",), ("once",), 30_000), 1)
        await t.advance("31s")
        await t.runtime.settler.rescue()
        assert await handle.state() is State.LOST
        assert [type(e) for e in await ms.events(run=handle.id, types=[RunLost])] == [RunLost]
    (line,) = [one for one in caplog.records if "stopped renewing" in one.getMessage()]
    assert line.levelname == "ERROR"
    assert f"is now lost, because of recovery='fail'; run it again with ms.retry({handle.id!r})" in line.getMessage()


async def test_recovery_fail_means_at_most_once_when_the_worker_stops_in_order_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What began is not handed to another worker; what did not begin is."""
    ms = Mainspring("memory://")
    calls: list[str] = []

    @ms.task(recovery="fail")
    async def once(ctx: Context) -> None:
        calls.append(ctx.run_id)
        await asyncio.sleep(100)

    async with manual(ms, "2026-01-01T00:00Z") as t:
        handle = await once.enqueue()
        worker = t.runtime.worker
        assert worker is not None
        await worker.run_once()
        await t.settle()
        stopping = asyncio.ensure_future(worker.hand_back("shutdown"))
        await t.advance("1s")
        await stopping
        assert (await handle.state(), calls) == (State.LOST, [handle.id])
        assert [type(e) for e in await ms.events(run=handle.id, types=[RunHandedBack, RunLost])] == [RunLost]
    (line,) = [one for one in caplog.records if "was stopped before its end" in one.getMessage()]
    assert line.levelname == "ERROR"
    assert f"is now lost, because of recovery='fail'; run it again with ms.retry({handle.id!r})" in line.getMessage()


async def test_a_run_that_a_stop_cuts_is_named(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def long() -> None:
        await asyncio.sleep(100)

    async with manual(ms, "2026-01-01T00:00Z") as t:
        handle = await long.enqueue()
        worker = t.runtime.worker
        assert worker is not None
        await worker.run_once()
        await t.settle()
        stopping = asyncio.ensure_future(worker.hand_back("shutdown"))
        await t.advance("1s")
        await stopping
        assert await handle.state() is State.WAITING
    (line,) = [one for one in caplog.records if "was stopped before its end" in one.getMessage()]
    assert line.levelname == "WARNING"
    assert "handed back: another program, or the next start, runs it again" in line.getMessage()


async def test_a_renewal_that_crosses_a_new_claim_stops_the_old_attempt_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease it asks about is lost because that attempt ended; the next one of the same run is ours, too."""
    ms = Mainspring("memory://")
    calls: list[int] = []

    @ms.task(retry=Retry(max_attempts=2, backoff="fixed", initial="0s", jitter=0))
    async def work(ctx: Context) -> None:
        calls.append(ctx.attempt)
        await asyncio.sleep(1)
        if ctx.attempt == 1:
            raise LookupError("not yet")

    async with manual(ms, "2026-01-01T00:00Z") as t:
        handle = await work.enqueue()
        worker = t.runtime.worker
        assert worker is not None
        await worker.run_once()
        renew, sent = t.runtime.store.renew, asyncio.Event()

        async def slow_request(*args: Any, **more: Any) -> Any:
            await sent.wait()
            return await renew(*args, **more)

        monkeypatch.setattr(t.runtime.store, "renew", slow_request)
        beating = asyncio.ensure_future(worker.heart.run_once())
        await t.advance("1s")  # the first attempt ends while the request is under way
        await worker.run_once()
        await t.settle()
        sent.set()
        await beating
        await t.advance("1s")
        await t.runtime.recorder.drain()
        assert (await handle.state(), calls) == (State.SUCCEEDED, [1, 2])


async def test_a_claim_whose_answer_was_lost_is_handed_back_at_the_next_heartbeat() -> None:
    ms = Mainspring("memory://")

    @ms.task
    async def work() -> None: ...

    async with manual(ms, "2026-01-01T00:00Z") as t:
        handle = await work.enqueue()
        runtime = t.runtime
        assert runtime.worker is not None
        await runtime.store.claim(Offer(runtime.owner, ("default/default",), ("work",), 30_000), 1)
        await runtime.worker.heart.run_once()
        await runtime.recorder.drain()
        assert await handle.state() is State.WAITING
        assert [type(e) for e in await ms.events(run=handle.id, types=[RunHandedBack])] == [RunHandedBack]


async def test_an_outcome_that_was_given_up_counts_if_the_lease_still_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other worker could take the run meanwhile: handing it back would only call it once more."""
    ms = Mainspring("memory://", lease_ttl="30s")
    calls: list[int] = []

    @ms.task(recovery="fail")
    async def work(ctx: Context) -> str:
        calls.append(ctx.attempt)
        return "done"

    async with manual(ms, "2026-01-01T00:00Z") as t:
        handle = await work.enqueue()
        worker = t.runtime.worker
        assert worker is not None

        async def fails(*args: Any, **more: Any) -> Any:
            raise StoreUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(t.runtime.store, "apply", fails)
            await worker.run_once()
            await t.advance("60s")  # the lease has ended, and no instance has rescued the run yet
        await worker.heart.run_once()
        await t.runtime.recorder.drain()
        assert (await handle.state(), calls) == (State.SUCCEEDED, [1])
        assert not await ms.events(run=handle.id, types=[RunHandedBack])


async def test_a_run_that_lost_its_lease_is_no_stray_that_never_began() -> None:
    """The lease has ended, and no instance has rescued the run yet: the next heartbeat finds it under our name."""
    ms = Mainspring("memory://", lease_ttl="30s")
    calls: list[int] = []

    @ms.task(recovery="fail")
    async def work(ctx: Context) -> None:
        calls.append(ctx.attempt)
        await asyncio.sleep(1_000)

    async with manual(ms, "2026-01-01T00:00Z") as t:
        handle = await work.enqueue()
        worker = t.runtime.worker
        assert worker is not None
        await worker.run_once()
        await t.advance("31s")
        for _ in range(2):
            await worker.heart.run_once()
            await t.settle()
            await t.runtime.recorder.drain()
        assert (await handle.state(), calls) == (State.LOST, [1])
        assert not await ms.events(run=handle.id, types=[RunHandedBack])


async def test_a_claim_that_is_still_under_way_is_no_stray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handed back while its answer travels, a run would be given to another worker and called twice."""
    ms = Mainspring("memory://")
    calls: list[int] = []

    @ms.task(recovery="fail")
    async def work(ctx: Context) -> None:
        calls.append(ctx.attempt)

    async with manual(ms, "2026-01-01T00:00Z") as t:
        handle = await work.enqueue()
        worker = t.runtime.worker
        assert worker is not None
        claim, arrived = t.runtime.store.claim, asyncio.Event()

        async def slow_answer(*args: Any, **more: Any) -> Any:
            answer = await claim(*args, **more)
            await arrived.wait()
            return answer

        monkeypatch.setattr(t.runtime.store, "claim", slow_answer)
        claiming = asyncio.ensure_future(worker.run_once())
        await t.settle()
        await worker.heart.run_once()
        arrived.set()
        await claiming
        await t.settle()
        await worker.heart.run_once()
        await t.runtime.recorder.drain()
        assert (await handle.state(), calls) == (State.SUCCEEDED, [1])
        assert not await ms.events(run=handle.id, types=[RunHandedBack])


async def test_a_claim_that_rides_along_is_no_stray_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it after another claim, which would be answered before it: there is one at a time."""
    ms = Mainspring("memory://")
    calls: list[int] = []

    @ms.task(recovery="fail")
    async def work(ctx: Context) -> None:
        calls.append(ctx.attempt)

    async with travel(ms, "2026-01-01T00:00Z") as t:
        worker = t.runtime.worker
        assert worker is not None
        apply, arrived = t.runtime.store.apply, asyncio.Event()

        async def slow_answer(changes: Any, *, claim_request: Any = None, now: Any = None) -> Any:
            answer = await apply(changes, claim_request=claim_request, now=now)
            if answer.claimed is not None and answer.claimed.claims:
                await arrived.wait()
            return answer

        monkeypatch.setattr(t.runtime.store, "apply", slow_answer)
        enqueuing = asyncio.ensure_future(work.enqueue())
        await t.settle()
        assert worker.claiming
        await worker.run_once()
        for _ in range(2):
            await worker.heart.run_once()
        arrived.set()
        handle = await enqueuing
        await t.settle()
        assert (await handle.state(), calls) == (State.SUCCEEDED, [1])
        assert not await ms.events(run=handle.id, types=[RunHandedBack])


async def test_retention_by_the_keeper_leaves_the_books_balanced() -> None:
    from mainspring.ledger.account import ledger

    ms = Mainspring("memory://", history="1h")

    @ms.every("1m")
    async def tick() -> None: ...

    async with travel(ms, "2026-01-01T00:00Z") as t:
        await t.advance("5h")
        book = await ledger(t.runtime.store, t.clock.now())
        assert (book.planned, book.unexplained) == (300, 0)
        assert len(await t.runs("tick")) < 130
        assert len(await t.runtime.store.find(Schedules())) == 1


async def test_a_lease_under_five_seconds_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    ms = Mainspring("memory://", lease_ttl="900ms")
    async with travel(ms, "2026-01-01T00:00Z"):
        assert "lease_ttl of 900 ms is short" in caplog.text


@pytest.mark.parametrize("installed", [True, False])
async def test_the_engine_runs_on_uvloop_where_it_is_installed(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    engine = ThreadLoop()

    async def kind() -> str:
        return type(asyncio.get_running_loop()).__module__.split(".")[0]

    try:
        assert await engine.call(kind()) == ("uvloop" if installed else "asyncio")
    finally:
        await engine.stop_when_idle(lambda: True)
