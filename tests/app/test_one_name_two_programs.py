"""Two programs on one store that give one name to different code: the first keeps it while it is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import json
from msgspec.structs import replace

from mainspring import Mainspring, State
from mainspring.app.internals import host_of, runner_of, runtime_of
from mainspring.backends.memory.store import MemoryStore
from mainspring.engine.presence import INSTANCE_PREFIX, Instance, list_instances
from mainspring.model.errors import StoreUnavailable
from mainspring.model.events import DeclarationConflict, DeclarationTaken, RunStarted, ScheduleUpdated
from mainspring.model.policies import Role
from mainspring.testing.history import Report, read_history
from mainspring.testing.history.names import check_names
from mainspring.testing.time_travel import Travel, travel
from tests.ledger_checks import check_ledger

START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)


def program(
    store: MemoryStore, ran: list[str], module: str, *, every: str = "10s", task: str = "job", **options: Any
) -> Mainspring:
    """A program whose module is `module`, with a schedule and task `task`, and a second task of its own."""
    ms = Mainspring(store=store, lease_ttl="10s", heartbeat="2s", poll_interval="500ms", **options)

    async def job() -> None:
        ran.append(module)

    async def own() -> None:
        ran.append(f"own of {module}")

    job.__module__ = own.__module__ = module
    ms.every(every, name=task)(ms.task(name=task)(job))
    ms.task(name=f"own {module}")(own)
    return ms


def join(app: Mainspring, t: Travel) -> None:
    """Put a further program on the same virtual clock."""
    host, other = host_of(app), host_of(t.app)
    settings = replace(host.settings, poll=other.settings.poll, pace=0)
    host.move_to(replace(host.environment, clock=other.clock, engine=other.engine, settings=settings))


@asynccontextmanager
async def beside(app: Mainspring, t: Travel, role: Role = "all") -> AsyncIterator[Mainspring]:
    """Run a further program on the same virtual clock."""
    join(app, t)
    await runner_of(app).start(role)
    try:
        yield app
    finally:
        await leave(app)


async def leave(app: Mainspring) -> None:
    """Stop a program in order."""
    if host_of(app).runtime is not None:
        runtime = runtime_of(app)
        await runtime.stop_now()
        await runtime.stop(0)
        await app.close()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_the_later_program_applies_neither_schedule_nor_task(caplog: pytest.LogCaptureFixture) -> None:
    store, ran = MemoryStore(), list[str]()
    async with travel(program(store, ran, "pa"), START) as t:
        before = await t.app.get("job")
        async with beside(program(store, ran, "pb", every="1s", name="other"), t) as later:
            owner = runtime_of(t.app).owner
            (line,) = errors(caplog)
            assert f"task 'job', schedule 'job': instance {owner} " in line
            assert later.health().warnings == (line,)
            assert (later.health().status, t.app.health().warnings) == ("ok", ())
            assert (await t.app.get("job")) == before
            await later.tasks["own pb"].enqueue()
            await t.advance("1m")
            assert ran.count("pb") == 0
            assert (ran.count("pa"), ran.count("own of pb")) == (6, 1)
            notes = await t.app.events(types=[DeclarationConflict])
            theirs, ours = "pa:program.<locals>.job", "pb:program.<locals>.job"
            assert {
                (one.kind, one.name, one.origin, one.held_by, one.holder)
                for one in notes
                if isinstance(one, DeclarationConflict)
            } == {("task", "job", ours, theirs, owner), ("schedule", "job", ours, theirs, owner)}
            assert len(errors(caplog)) == 1
            rows = {one.app: one for lease, one in await list_instances(store) if lease.live}
            assert (rows["other"].tasks, rows["other"].declares) == (("own pb",), {})
        assert (await t.app.get("job")).revision == 1
        await check_ledger(t)


async def test_it_takes_over_when_the_other_has_been_gone_for_a_lease(caplog: pytest.LogCaptureFixture) -> None:
    store, ran = MemoryStore(), list[str]()
    idle = Mainspring(store=store, namespace="elsewhere")
    async with travel(idle, START) as t:
        first = program(store, ran, "pa")
        async with beside(first, t), beside(program(store, ran, "pb", every="5s"), t) as later:
            await t.advance("25s")
            assert ran == ["pa", "pa"]
            await leave(first)
            await t.advance("7s")
            assert ran == ["pa", "pa"]  # it may just be restarting
            assert (await later.get("job")).revision == 1
            await t.advance("10s")
            assert (await later.get("job")).revision == 2
            assert "the task 'job' is free: this program takes it over (pb:" in caplog.text
            assert later.health().warnings == ()
            notes = await later.events(types=[DeclarationTaken])
            assert {(one.kind, one.name) for one in notes if isinstance(one, DeclarationTaken)} == {
                ("task", "job"),
                ("schedule", "job"),
            }
            await t.advance("20s")
            assert ran.count("pb") >= 4
            report = Report()
            check_names(await read_history(store), report)
            assert report.violations == []


async def test_a_program_that_restarts_keeps_its_names() -> None:
    store, ran = MemoryStore(), list[str]()
    async with travel(Mainspring(store=store, namespace="elsewhere"), START) as t:
        first = program(store, ran, "pa")
        async with beside(first, t), beside(program(store, ran, "pb"), t):
            for _ in range(3):
                await leave(first)
                await t.advance("6s")
                first = program(store, ran, "pa")
                join(first, t)
                await runner_of(first).start()
                await t.advance("20s")
            await leave(first)
        assert set(ran) == {"pa"}


async def test_a_rolling_deploy_without_versions() -> None:
    """The same code in a new process: the newest start wins, and both execute runs."""
    store, ran = MemoryStore(), list[str]()
    async with travel(program(store, ran, "pa", every="10s"), START) as t:
        await t.advance("15s")
        async with beside(program(store, ran, "pa", every="2s"), t) as newer:
            assert (await newer.get("job")).revision == 2
            assert await newer.events(types=[DeclarationConflict]) == []
            await t.advance("60s")
            starts = await newer.events(types=[RunStarted], limit=1_000)
            assert {e.owner for e in starts} == {runtime_of(t.app).owner, runtime_of(newer).owner}
        assert ran.count("pa") >= 25
        await check_ledger(t)


async def test_a_renamed_module(caplog: pytest.LogCaptureFixture) -> None:
    """`jobs.py` becomes `tasks.py` in a rolling deploy: the new process waits until the old one is gone."""
    store, ran = MemoryStore(), list[str]()
    async with travel(Mainspring(store=store, namespace="elsewhere"), START) as t:
        old = program(store, ran, "jobs")
        async with beside(old, t), beside(program(store, ran, "tasks"), t) as new:
            await t.advance("15s")
            assert len(errors(caplog)) == 1
            await leave(old)
            await t.advance("20s")
            # the definition did not change, so there is no new revision
            assert ((await new.get("job")).revision, await new.events(types=[ScheduleUpdated])) == (1, [])
            assert ran[-1] == "tasks"


async def test_a_renamed_module_after_a_stop_has_nothing_to_wait_for(caplog: pytest.LogCaptureFixture) -> None:
    store, ran = MemoryStore(), list[str]()
    async with travel(program(store, ran, "jobs"), START) as t:
        await t.advance("1s")
    async with travel(program(store, ran, "tasks"), START + timedelta(seconds=2)) as t:
        await t.advance("20s")
        assert (errors(caplog), set(ran)) == ([], {"tasks"})


async def test_a_schedule_whose_task_is_held_is_not_applied_either() -> None:
    store, ran = MemoryStore(), list[str]()
    async with travel(program(store, ran, "pa"), START) as t:
        later = program(store, ran, "pb", task="other")

        async def job() -> None:
            ran.append("pb")

        later.every("1s", name="mine")(later.task(name="job")(job))
        async with beside(later, t):
            assert sorted(row.name for row in await later.schedules()) == ["job", "other"]


async def test_a_worker_of_other_code_claims_nothing_of_the_name() -> None:
    store, ran = MemoryStore(), list[str]()
    async with (
        travel(program(store, ran, "pa"), START, role="planner") as t,
        beside(program(store, ran, "pb"), t, role="worker") as worker,
    ):
        await worker.tasks["own pb"].enqueue()
        await t.advance("30s")
        assert ran == ["own of pb"]  # the planner holds the schedule and the task of its code
        assert (await t.runs("job"))[0].state is State.WAITING


async def test_namespaces_separate_the_names(caplog: pytest.LogCaptureFixture) -> None:
    store, ran = MemoryStore(), list[str]()
    async with travel(program(store, ran, "pa"), START) as t, beside(program(store, ran, "pb", namespace="b"), t):
        await t.advance("10s")
    assert (errors(caplog), sorted(ran)) == ([], ["pa", "pb"])


async def test_rows_of_earlier_versions_hold_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store, ran = MemoryStore(), list[str]()
    async with travel(Mainspring(store=store, namespace="elsewhere"), START) as t:
        row = {"app": "mainspring", "tasks": ["job"], "declares": {"job": "digest"}}
        assert await store.lease(f"{INSTANCE_PREFIX}old", "old", 60_000, data=json.encode(row).decode())
        async with beside(program(store, ran, "pb"), t):
            await t.advance("10s")
    assert (errors(caplog), ran) == ([], ["pb"])


def test_an_earlier_version_reads_the_rows_of_this_one() -> None:
    class Before(Instance, frozen=True):
        """An earlier version knows fewer fields, and ignores those that it does not know."""

    now = Instance("a", namespace="n", task_origins={"t": "m:t"}, schedule_origins={"s": "m:t"})
    assert json.decode(json.encode(now), type=Before).app == "a"
    assert json.decode(b'{"app":"a"}', type=Instance) == Instance("a")


class SlowStore(MemoryStore):
    """A store that lets others run during each call, so that starts at the same time interleave."""

    async def find(self, query: Any) -> list[Any]:
        await asyncio.sleep(0)
        found = await super().find(query)
        await asyncio.sleep(0)
        return found

    async def lease(self, *args: Any, **rest: Any) -> Any:
        await asyncio.sleep(0)
        return await super().lease(*args, **rest)


@pytest.mark.parametrize("lead", range(12))
async def test_of_two_programs_that_start_at_once_exactly_one_holds_the_name(lead: int) -> None:
    store, ran = SlowStore(), list[str]()
    async with travel(Mainspring(store=store, namespace="elsewhere"), START) as t:
        both = [program(store, ran, "pa"), program(store, ran, "pb")]

        async def start(app: Mainspring, turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            join(app, t)
            await runner_of(app).start()

        await t.advance("1s")
        starting = asyncio.gather(start(both[0], 0), start(both[1], lead))
        while not starting.done():
            await t.advance("50ms")
        await starting
        await t.advance("40s")
        holds = [not runtime_of(app).declarations.conflicts for app in both]
        assert sorted(holds) == [False, True]
        assert set(ran) == {"pa" if holds[0] else "pb"}
        for app in both:
            await leave(app)


async def test_the_names_are_free_at_once_if_the_start_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    store, ran = MemoryStore(), list[str]()
    async with travel(Mainspring(store=store, namespace="elsewhere"), START) as t:
        broken = program(store, ran, "pa")
        join(broken, t)

        def fail(*_: Any) -> None:
            raise StoreUnavailable("gone")

        monkeypatch.setattr("mainspring.runtime.runtime.StoreListener", fail)
        with pytest.raises(StoreUnavailable):
            await runner_of(broken).start()
        monkeypatch.undo()
        async with beside(program(store, ran, "pb"), t):
            await t.advance("10s")
    assert ran == ["pb"]


async def test_without_a_conflict_nothing_is_asked() -> None:
    store, ran = MemoryStore(), list[str]()
    asked: list[str] = []
    async with travel(program(store, ran, "pa"), START) as t:
        for verb in ("find", "lease", "claim", "due", "apply"):
            setattr(store, verb, lambda *_, verb=verb, **__: asked.append(verb))
        assert await runtime_of(t.app).declarations.run_once() > 0
        for verb in ("find", "lease", "claim", "due", "apply"):
            delattr(store, verb)
    assert asked == []
