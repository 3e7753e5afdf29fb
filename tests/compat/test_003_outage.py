"""Source 003 through its door while the store is away: `run(job)` waits, as the engine does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.compat.jobs import MAX_OUTAGE_SECONDS, Job, Schedule, Scheduler, SchedulerReport, Task, TaskContext
from mainspring.model.errors import StoreUnavailable
from mainspring.testing.time_travel import Travel
from tests.compat.door_support import virtual

VERBS = ("find", "apply", "claim", "renew", "due", "lease")


async def unavailable(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("away")


async def through(store: Mainspring, t: Travel, patch: pytest.MonkeyPatch, outage: float) -> SchedulerReport:
    """Run a job of 25 fires, one every 250 ms; after six of them the store is away for `outage` seconds."""
    fires: list[object] = []

    async def note(context: TaskContext[Any]) -> None:
        fires.append(context.run.scheduled_at)

    job = Job.without_deps("job", Schedule.interval("250ms"), Task.from_async(note)).with_max_runs(25)
    scheduler = Scheduler(store)
    running = asyncio.ensure_future(scheduler.run(job))
    while len(fires) < 6:
        await t.advance("250ms")
    with patch.context() as away:
        for verb in VERBS:
            away.setattr(t.runtime.store, verb, unavailable)
        for _ in range(10):
            scheduler.handle().wake()  # as its poll does
            await t.advance(f"{outage / 10}s")
        assert not running.done()
    await t.advance("1m")
    return await running


@pytest.mark.parametrize("outage", [1.5, MAX_OUTAGE_SECONDS * 4])
async def test_an_outage_does_not_end_a_job(monkeypatch: pytest.MonkeyPatch, outage: float) -> None:
    store = Mainspring("memory://", lease_ttl="1h")
    async with virtual(store) as t:
        report = await through(store, t, monkeypatch, outage)
    assert (report.state.trigger_count, report.state.next_run_at) == (25, None)


@pytest.mark.parametrize(("outage", "ends"), [(MAX_OUTAGE_SECONDS / 2, True), (MAX_OUTAGE_SECONDS * 2, False)])
async def test_an_outage_while_a_job_is_stopped_delays_its_report(
    monkeypatch: pytest.MonkeyPatch, outage: float, *, ends: bool
) -> None:
    store = Mainspring("memory://", lease_ttl="1h")

    async def note(_: TaskContext[Any]) -> None: ...

    async with virtual(store) as t, store.running():
        scheduler = Scheduler(store)
        job = Job.without_deps("job", Schedule.interval("1h"), Task.from_async(note))
        running = asyncio.ensure_future(scheduler.run(job))
        await t.advance("10s")
        with monkeypatch.context() as away:
            for verb in VERBS:
                away.setattr(t.runtime.store, verb, unavailable)
            scheduler.handle().shutdown()
            await t.advance(f"{outage}s")
            assert running.done() is not ends
        await t.advance("10s")
        if ends:
            assert (await running).job_id == "job"
            assert (await store.get("job")).state == "paused"
        else:
            with pytest.raises(StoreUnavailable):
                await running
