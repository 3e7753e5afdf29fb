"""What follows from the end of a run: fixed delay, and a schedule whose retries are spent."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Every, State
from mainspring.backends.memory.store import MemoryStore
from mainspring.testing.time_travel import Travel, travel
from tests.engine.noting import START, App, at, ms_at
from tests.ledger_checks import check_ledger
from tests.stored_rows import stored


@pytest.fixture
def app() -> App:
    return App()


# ── on_exhausted ──


async def test_on_exhausted_continue_goes_on(app: App) -> None:
    app.fails = True
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="1h", on_exhausted="continue")
        await t.advance("3h30m")
        assert [run.state for run in await t.runs("s")] == [State.FAILED] * 3
        assert (await app.ms.get("s")).state == "active"
        await check_ledger(t)


async def test_on_exhausted_pause_stops_after_the_last_retry(app: App) -> None:
    app.fails = True
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="1h", on_exhausted="pause")
        await t.advance("1h5s")
        assert (await app.ms.get("s")).state == "active"  # one attempt is left
        await t.advance("6h")
        row = await app.ms.get("s")
        assert (row.state, row.reason) == ("paused", "retries_exhausted")
        assert len(await t.runs("s")) == 1
        app.fails = False
        await app.ms.resume("s")
        await t.advance("1h")
        assert [run.state for run in await t.runs("s")] == [State.FAILED, State.SUCCEEDED]
        assert (await check_ledger(t)).skipped == {"paused": 6}


async def test_on_exhausted_pause_sees_the_failure_behind_the_fires_it_made_skip(app: App) -> None:
    """Fires skipped by overlap while the run was tried again are newer than it, and no reason to go on."""
    app.fails = True
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="3s", on_exhausted="pause", overlap="forbid")
        await t.advance("1m")
        row = await app.ms.get("s")
        assert (row.state, row.reason) == ("paused", "retries_exhausted")
        assert [run.state for run in await t.runs("s")] == ["failed", "skipped", "skipped", "skipped"]
        await check_ledger(t)


async def test_on_exhausted_pause_does_not_mind_a_success_or_a_cancel(app: App) -> None:
    app.seconds = 60
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="1h", on_exhausted="pause")
        await t.advance("2h30s")
        (running,) = await t.runs("s", states=(State.RUNNING,))
        await app.ms.cancel(running.id)
        await t.advance("1h")
        assert [run.state for run in await t.runs("s")] == [State.SUCCEEDED, State.CANCELLED, State.RUNNING]
        assert (await app.ms.get("s")).state == "active"
        await check_ledger(t)


# ── fixed delay ──


async def test_fixed_delay_counts_from_the_end_of_the_last_run(app: App) -> None:
    app.seconds = 600
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every=Every("1h", fixed_delay=True))
        await t.advance("4h")
        assert app.fires == [at(9), at(10, 10), at(11, 20)]
        await check_ledger(t)


async def test_fixed_delay_counts_from_the_end_of_a_failed_run_with_its_retries(app: App) -> None:
    app.fails = True
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every=Every("1h", fixed_delay=True))
        await t.advance("1h30s")
        assert [run.state for run in await t.runs("s")] == [State.FAILED]
        await t.advance("1h")
        assert app.fires[2:] == [at(10, 0, 10)] * 2
        await check_ledger(t)


async def test_fixed_delay_goes_on_after_the_cancel_of_a_waiting_run() -> None:
    app = App(concurrency=1)
    app.seconds = 5_400
    async with travel(app.ms, START) as t:
        await app.ms.tasks["note"].using(at=at(8, 30)).enqueue()  # takes the only slot until 10:00
        await app.ms.schedule("s", "note", every=Every("1h", fixed_delay=True))
        await t.advance("1h15m")
        (waiting,) = await t.runs("s")
        assert waiting.state is State.WAITING
        await app.ms.cancel(waiting.id)
        await t.advance("1h15m")
        assert [run.fire_time for run in await t.runs("s")] == [ms_at(9), ms_at(10, 15)]
        await check_ledger(t)


async def test_fixed_delay_goes_on_after_the_cancel_of_a_running_run(app: App) -> None:
    app.seconds = 1_800
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every=Every("1h", fixed_delay=True))
        await t.advance("1h10m")
        (running,) = await t.runs("s")
        await app.ms.cancel(running.id)
        await t.advance("1h")
        assert app.fires == [at(9), at(10, 10)]
        await check_ledger(t)


async def crash(t: Travel) -> None:
    """The worker loses what it runs and does not renew: after 10 minutes the leases end."""
    worker = t.runtime.worker
    assert worker is not None
    for held in list(worker.running.values()):
        held.execution.handle.cancel()
        del worker.running[held.attempt.run.id]
    await worker.heart.stop()
    await t.advance("10m")
    worker.heart.start()


@pytest.mark.parametrize("recovery", ["retry", "fail"])
async def test_fixed_delay_goes_on_after_a_crash(recovery: Any) -> None:
    store = MemoryStore()
    app = App(store)
    app.seconds = 3_000
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every=Every("1h", fixed_delay=True), recovery=recovery)
        await t.advance("1h1m")
        await crash(t)
        runs = await t.runs("s")
        if recovery == "fail":
            assert [run.state for run in runs] == [State.LOST]
        else:
            assert [(run.state, run.crashes, run.attempt) for run in runs] == [(State.RUNNING, 1, 2)]
        await check_ledger(t)
    after = App(store)
    async with travel(after.ms, at(9, 30)) as t:
        await t.advance("1h30m")
        runs = await t.runs("s")
        ended = runs[0].ended_at or 0
        assert runs[0].state is (State.LOST if recovery == "fail" else State.SUCCEEDED)
        assert runs[1].fire_time == ended + 3_600_000
        await check_ledger(t)


async def test_fixed_delay_with_an_end(app: App) -> None:
    app.seconds = 600
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every=Every("1h", fixed_delay=True), end=at(10, 30))
        await t.advance("1d")
        assert app.fires == [at(9), at(10, 10)]
        assert (await app.ms.get("s")).reason == "ended"
        await check_ledger(t)


async def test_fixed_delay_paused_while_its_run_is_open_starts_afresh_when_resumed(app: App) -> None:
    app.seconds = 600
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every=Every("1h", fixed_delay=True))
        await t.advance("1h5m")
        await app.ms.pause("s")
        await t.advance("5h")
        assert len(app.fires) == 1
        await app.ms.resume("s")  # 14:05
        await t.advance("1h")
        assert app.fires == [at(9), at(15, 5)]
        await check_ledger(t)


async def test_fixed_delay_after_a_manual_trigger_counts_from_its_end(app: App) -> None:
    """A manual run that is open when the fire comes makes it skip; the next one counts from the manual run's end."""
    app.seconds = 1_200
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every=Every("1h", fixed_delay=True))
        await t.advance("50m")
        await app.ms.trigger("s")  # until 09:10
        await t.advance("2h")
        fires = [run.fire_time for run in await t.runs("s") if run.origin == "fire"]
        assert fires == [ms_at(9), ms_at(10, 10)]
        await check_ledger(t)


async def test_fixed_delay_after_downtime_runs_once_late() -> None:
    store = MemoryStore()
    app = App(store)
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every=Every("1h", fixed_delay=True))
        await t.advance("90m")
    again = App(store)
    async with travel(again.ms, at(15, 20)) as t:
        await t.advance("10m")
        assert [(fire, ran) for fire, ran in zip(again.fires, again.ran, strict=True)] == [(at(10), at(15, 20))]
        await t.advance("1h")
        assert again.fires == [at(10), at(16, 20)]
        await check_ledger(t)


async def test_a_look_while_a_run_is_open_writes_nothing_that_could_undo_the_next_fire(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write of a slow instance arrives after another one has armed the schedule."""
    app.seconds = 10
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every=Every("1m", fixed_delay=True))
        await t.advance("61s")
        settler, late = t.runtime.settler, []

        class Slow:
            def submit(self, change: Any) -> Any:
                late.append(change)
                return asyncio.sleep(0)

        await t.runtime._touch([(await stored(app.ms, app.ms.get("s"))).id])
        with monkeypatch.context() as patch:
            patch.setattr(settler, "_batcher", Slow())
            await settler.update_touched()
        await t.advance("20s")
        assert (await stored(app.ms, app.ms.get("s"))).next_at is not None
        for change in late:
            await t.runtime.batcher.apply(change)
        assert (await stored(app.ms, app.ms.get("s"))).next_at is not None
        await t.advance("1m")
        assert len(await t.fires("s")) == 2


async def test_a_run_of_an_earlier_definition_does_not_end_the_chain(app: App) -> None:
    """It ends last, and knows nothing of the delay: the schedule must be looked at all the same."""
    app.seconds = 100
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="1m", overlap="allow_parallel", max_runs=2)
        await t.advance("1m")  # one run, open until 2:40
        app.seconds = 1
        await app.ms.update("s", every=Every("30s", fixed_delay=True), max_runs=None)
        await t.advance("35s")  # the first run of the delay is over
        assert [run.state for run in await t.runs("s")] == [State.RUNNING, State.SUCCEEDED]
        await t.advance("3m")
        fires = await t.fires("s")
        assert fires[2] - fires[1] == timedelta(seconds=31)
        assert len(fires) >= 4
        await check_ledger(t)
