"""Overlap: what a fire does while an earlier run is open, which run blocked it, and which gate a run waits at."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Context, Mainspring, Retry, State
from mainspring.app.internals import host_of, registry_of
from mainspring.backends.memory.store import MemoryStore
from mainspring.model.events import CancelRequested, RunCancelled, RunSkipped
from mainspring.model.instant import instant_ms
from mainspring.model.run import Run
from mainspring.ports.store import Agenda, Gates
from mainspring.rules.lanes import schedule_gate, task_gate
from mainspring.testing.time_travel import Travel, travel
from tests.ledger_checks import check_ledger

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)


def states(runs: list[Run]) -> list[str]:
    return [str(run.state) for run in runs]


def slow_app(url: str = "memory://", seconds: float = 150, **options: Any) -> tuple[Mainspring, dict[str, int]]:
    """A task that takes a while, and how many of it ran at once at most."""
    ms = Mainspring(url, lease_ttl="10m")
    seen = {"now": 0, "most": 0, "begun": 0}

    @ms.task(timeout=None, **options)
    async def slow() -> None:
        seen["now"] += 1
        seen["begun"] += 1
        seen["most"] = max(seen["most"], seen["now"])
        try:
            await asyncio.sleep(seconds)
        finally:
            seen["now"] -= 1

    return ms, seen


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/overlap.db"


# ── forbid ──


async def test_forbid_skips_and_names_the_run_that_blocked(url: str) -> None:
    ms, seen = slow_app(url)
    skipped: list[RunSkipped] = []
    ms.on_event(RunSkipped, skipped.append)
    async with travel(ms, START) as t:
        await ms.schedule("s", "slow", every="1m", overlap="forbid")
        await t.advance("3m")
        runs = await t.runs("s")
        assert states(runs) == ["running", "skipped", "skipped"]
        assert [event.by for event in skipped] == [runs[0].id, runs[0].id]
        assert [event.run_id for event in skipped] == [runs[1].id, runs[2].id]
        assert {run.reason for run in runs[1:]} == {"overlap"}
        assert [run.ended_at for run in runs[1:]] == [instant_ms(START) + 120_000, instant_ms(START) + 180_000]
        await t.advance("1m")
        assert states(await t.runs("s")) == ["succeeded", "skipped", "skipped", "running"]
        assert seen["most"] == 1
        assert (await check_ledger(t)).skipped == {"overlap": 2}


async def test_forbid_is_the_default() -> None:
    ms, _ = slow_app()
    async with travel(ms, START) as t:
        await ms.schedule("s", "slow", every="1m")
        await t.advance("2m")
        assert states(await t.runs("s")) == ["running", "skipped"]
        await check_ledger(t)


async def test_forbid_counts_a_run_between_two_attempts_as_open() -> None:
    ms = Mainspring("memory://")

    @ms.task(retry=Retry(max_attempts=2, backoff="fixed", initial="90s", jitter=0))
    async def fails() -> None:
        raise ValueError("no")

    async with travel(ms, START) as t:
        await ms.schedule("s", fails, every="1m", overlap="forbid")
        await t.advance("2m")
        assert states(await t.runs("s")) == ["retrying", "skipped"]
        await check_ledger(t)


async def test_forbid_holds_a_manual_trigger_at_the_gate(url: str) -> None:
    """The planner does not see manual runs coming; the gate does."""
    ms, seen = slow_app(url)
    async with travel(ms, START) as t:
        schedule = await ms.schedule("s", "slow", every="1m", overlap="forbid")
        await t.advance("1m")
        handle = await ms.trigger("s")
        await t.settle()
        waiting = await handle.run()
        assert (waiting.state, waiting.origin, waiting.parked_on) == ("waiting", "trigger", schedule_gate(schedule.id))
        await t.advance("2m30s")
        assert (await handle.state()) is State.RUNNING
        assert seen["most"] == 1
        await check_ledger(t)


async def test_forbid_skips_a_fire_while_a_manual_run_is_open(url: str) -> None:
    ms, seen = slow_app(url)
    skipped: list[RunSkipped] = []
    ms.on_event(RunSkipped, skipped.append)
    async with travel(ms, START) as t:
        await ms.schedule("s", "slow", every="1m", overlap="forbid")
        handle = await ms.trigger("s")
        await t.advance("1m")
        assert [event.by for event in skipped] == [handle.id]
        assert seen["most"] == 1
        await check_ledger(t)


async def test_forbid_two_manual_triggers_go_one_after_the_other(url: str) -> None:
    ms, seen = slow_app(url, seconds=10)
    async with travel(ms, START) as t:
        await ms.schedule("s", "slow", every="1h", overlap="forbid")
        handles = [await ms.trigger("s") for _ in range(4)]
        await t.advance("40s")
        assert [await handle.state() for handle in handles] == [State.SUCCEEDED] * 4
        began = [(await handle.run()).started_at or START for handle in handles]
        assert [(at - began[0]).total_seconds() for at in began] == [0, 10, 20, 30]
        assert seen["most"] == 1
        await check_ledger(t)


# ── queue_one ──


async def test_queue_one_keeps_the_first_queued_and_skips_the_others(url: str) -> None:
    ms, seen = slow_app(url, seconds=200)
    skipped: list[RunSkipped] = []
    ms.on_event(RunSkipped, skipped.append)
    async with travel(ms, START) as t:
        schedule = await ms.schedule("s", "slow", every="1m", overlap="queue_one")
        await t.advance("4m")
        runs = await t.runs("s")
        assert states(runs) == ["running", "waiting", "skipped", "skipped"]
        assert runs[1].parked_on == schedule_gate(schedule.id)
        assert [event.by for event in skipped] == [runs[0].id, runs[0].id]
        await t.advance("1m")  # the first ended at 08:04:20, the second began then, 08:05 is queued
        assert states(await t.runs("s")) == ["succeeded", "running", "skipped", "skipped", "waiting"]
        assert seen["most"] == 1
        assert (await check_ledger(t)).skipped == {"overlap": 2}


async def test_queue_one_several_due_at_once_queue_one() -> None:
    store = MemoryStore()

    def app() -> Mainspring:
        ms = Mainspring(store=store, lease_ttl="10m")

        @ms.every("10s", name="s", overlap="queue_one", missed="skip", grace="1h")
        async def work() -> None:
            await asyncio.sleep(1)

        return ms

    async with travel(app(), START) as t:
        await t.advance("1s")
    async with travel(app(), START + timedelta(seconds=35)) as t:
        await t.advance("10s")
        assert states(await t.runs("s")) == ["succeeded", "succeeded"]
        assert (await check_ledger(t)).missed == 2


# ── queue_all ──


async def test_queue_all_runs_every_fire_in_order_one_at_a_time(url: str) -> None:
    ms = Mainspring(url, lease_ttl="10m")
    ran: list[datetime] = []

    @ms.task(timeout=None)
    async def slow(ctx: Context) -> None:
        ran.append(ctx.fire_time)
        await asyncio.sleep(90)

    async with travel(ms, START) as t:
        schedule = await ms.schedule("s", slow, every="1m", overlap="queue_all", max_runs=5)
        await t.advance("5m")
        runs = await t.runs("s")
        assert states(runs) == ["succeeded", "succeeded", "running", "waiting", "waiting"]
        assert {run.parked_on for run in runs[3:]} == {schedule_gate(schedule.id)}
        await t.advance("10m")
        assert ran == [START + timedelta(minutes=n) for n in range(1, 6)]
        assert states(await t.runs("s")) == ["succeeded"] * 5
        assert (await check_ledger(t)).skipped == {}


# ── cancel_running ──


async def test_cancel_running_makes_way_for_the_new_fire(url: str) -> None:
    ms, seen = slow_app(url)
    async with travel(ms, START) as t:
        await ms.schedule("s", "slow", every="1m", overlap="cancel_running")
        await t.advance("3m")
        runs = await t.runs("s")
        assert states(runs) == ["cancelled", "cancelled", "running"]
        assert {run.reason for run in runs[:2]} == {"replaced by a newer fire"}
        assert [run.started_at for run in runs[2:]] == [instant_ms(START) + 180_000]
        assert (seen["most"], seen["begun"]) == (1, 3)
        asked = await ms.events(types=[CancelRequested])
        assert [(event.run_id, event.by) for event in asked] == [(run.id, "overlap") for run in runs[:2]]  # type: ignore[attr-defined]
        await check_ledger(t)


async def test_cancel_running_cancels_what_still_waits_too() -> None:
    ms, _ = slow_app(limit=1)
    async with travel(ms, START) as t:
        await ms.tasks["slow"].enqueue()  # takes the task's only slot until 08:02:30
        await ms.schedule("s", "slow", every="1m", overlap="cancel_running")
        await t.advance("2m")
        runs = await t.runs("s")
        assert states(runs) == ["cancelled", "waiting"]
        cancelled = await ms.events(run=runs[0].id, types=[RunCancelled])
        assert len(cancelled) == 1
        await t.advance("45s")
        assert states(await t.runs("s")) == ["cancelled", "running"]
        await check_ledger(t)


async def test_cancel_running_of_two_instances_never_cancels_the_newest() -> None:
    """Both see the fire as due; the one whose change is refused must not cancel what the other has just planned."""
    store = MemoryStore()
    apps = []
    for _ in range(2):
        ms = Mainspring(store=store, lease_ttl="10m")

        @ms.task(timeout=None)
        async def slow() -> None:
            await asyncio.sleep(1_000)

        apps.append(ms)
    first, second = apps
    async with travel(first, START) as t:
        await first.schedule("s", "slow", every="1m", overlap="cancel_running")
        await t.advance("90s")
        other = await _second_runtime(second, t)
        # Both instances read what is due before either has written.
        t.clock.move_to(t.clock.monotonic() + 31)
        due_here = await store.due(Agenda.SCHEDULES, 10)
        assert len(due_here.schedules) == 1
        await _Other(t.runtime.settler).plan_what_was_read(due_here)
        await other.plan_what_was_read(due_here)
        await t.settle()
        await t.advance("1s")
        runs = await t.runs("s")
        assert states(runs) == ["cancelled", "running"]
        await check_ledger(t)


class _Other:
    """Another instance's settler, fed with what it has read before."""

    def __init__(self, settler: Any) -> None:
        self.settler = settler

    async def plan_what_was_read(self, due: Any) -> None:
        async def read(*_: Any, **__: Any) -> Any:
            return due

        store = self.settler._store
        self.settler._store = _Reads(store, read)
        try:
            await self.settler.plan()
        finally:
            self.settler._store = store


class _Reads:
    def __init__(self, store: Any, due: Any) -> None:
        self._store = store
        self.due = due

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def _second_runtime(app: Mainspring, t: Travel) -> _Other:
    from mainspring.runtime.runtime import Runtime

    runtime = Runtime(
        t.runtime.store,
        t.clock,
        host_of(app).ids.rng,
        app.settings,
        registry_of(app).handlers,
        host_of(app).bus,
        host_of(app).threads,
    )
    await runtime.open()
    return _Other(runtime.settler)


# ── allow_parallel ──


async def test_allow_parallel_runs_them_side_by_side_without_a_gate(url: str) -> None:
    ms, seen = slow_app(url)
    async with travel(ms, START) as t:
        schedule = await ms.schedule("s", "slow", every="1m", overlap="allow_parallel")
        await t.advance("4m")
        runs = await t.runs("s")
        assert states(runs) == ["succeeded", "running", "running", "running"]
        assert seen["most"] == 3
        assert {run.gates for run in runs} == {()}
        assert await t.runtime.store.find(Gates(names=(schedule_gate(schedule.id),))) == []
        await check_ledger(t)


# ── replays are never skipped ──


@pytest.mark.parametrize("overlap", ["forbid", "queue_one", "queue_all", "allow_parallel"])
async def test_replays_are_never_skipped_by_overlap(overlap: Any) -> None:
    store = MemoryStore()
    ran: list[datetime] = []

    def app() -> Mainspring:
        ms = Mainspring(store=store, lease_ttl="10m")

        @ms.every("1m", name="s", overlap=overlap, missed="replay_all", grace=0, end=START + timedelta(minutes=9))
        async def work(ctx: Context) -> None:
            ran.append(ctx.fire_time)
            await asyncio.sleep(20)

        return ms

    async with travel(app(), START) as t:
        await t.advance("70s")  # the first is still running: handed back
    async with travel(app(), START + timedelta(minutes=9, seconds=30)) as t:
        await t.advance("10m")
        assert ran == [START + timedelta(minutes=1), *(START + timedelta(minutes=n) for n in range(1, 10))]
        book = await check_ledger(t)
        assert (book.planned, book.ended, book.skipped) == (9, 9, {})


# ── a task's own limit ──


async def test_a_tasks_limit_is_a_gate_over_all_its_schedules_and_calls(url: str) -> None:
    ms, seen = slow_app(url, seconds=60, limit=2)
    async with travel(ms, START) as t:
        for name in ("a", "b", "c"):
            await ms.schedule(name, "slow", at=[START + timedelta(minutes=1)])
        handle = await ms.tasks["slow"].using(delay="1m").enqueue()
        await t.advance("1m")
        gate = task_gate("default", "slow")
        parked = [run for run in await t.runs() if run.parked_on == gate]
        assert len(parked) == 2
        assert handle.id in {run.id for run in parked} or seen["now"] == 2
        assert seen["most"] == 2
        (row,) = await t.runtime.store.find(Gates(names=(gate,)))
        assert (row.max, row.held) == (2, 2)
        await t.advance("1m")
        assert (seen["begun"], seen["most"]) == (4, 2)
        await t.advance("1m")
        assert (await t.runtime.store.find(Gates(names=(gate,))))[0].held == 0
        await check_ledger(t)


async def test_a_run_behind_two_gates_takes_both_or_none() -> None:
    ms, seen = slow_app(seconds=60, limit=1)
    async with travel(ms, START) as t:
        a = await ms.schedule("a", "slow", every="1m", overlap="queue_all", max_runs=1)
        await ms.schedule("b", "slow", every="1m", overlap="queue_all", max_runs=1)
        await t.advance("1m")
        held = {gate.name: gate.held for gate in await t.runtime.store.find(Gates())}
        assert held[task_gate("default", "slow")] == 1
        assert sum(count for name, count in held.items() if name.startswith("schedule:")) == 1
        assert schedule_gate(a.id) in held
        await t.advance("2m")
        assert (seen["begun"], seen["most"]) == (2, 1)
        assert {gate.held for gate in await t.runtime.store.find(Gates())} == {0}
        await check_ledger(t)


async def test_a_run_that_is_parked_can_be_cancelled() -> None:
    ms, _ = slow_app(seconds=60)
    async with travel(ms, START) as t:
        await ms.schedule("s", "slow", every="1m", overlap="queue_all", max_runs=1)
        await t.advance("1m")
        handle = await ms.trigger("s")
        await t.settle()
        assert (await handle.run()).parked_on is not None
        run = await ms.cancel(handle.id, reason="not needed")
        assert (run.state, run.reason, run.parked_on) == (State.CANCELLED, "not needed", None)
        await check_ledger(t)


async def test_no_run_overtakes_a_parked_run(url: str) -> None:
    """A run that comes when the gate has just been opened goes behind those that wait at it."""
    ms = Mainspring(url, concurrency=1, lease_ttl="10m")
    ran: list[int] = []

    @ms.task(limit=1, executor="loop")
    def work(n: int) -> None:
        ran.append(n)

    async with travel(ms, START) as t:
        await work.enqueue_many([(n,) for n in range(50)])  # concurrency 1 parks at most three at each claim
        await t.advance("1m")
        assert ran == list(range(50))
        await check_ledger(t)
