"""An instance that only works: it plans and declares nothing, and yet nothing that a worker leaves behind stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Mainspring, Retry, State
from mainspring.backends.memory.store import MemoryStore
from mainspring.engine.presence import INSTANCE_PREFIX, list_instances
from mainspring.ledger.account import ledger
from mainspring.model.errors import InvalidInput
from mainspring.model.events import LeaseExpired, ScheduleCreated
from mainspring.model.lease import Lease
from mainspring.ports.store import Offer, Schedules
from mainspring.rules.autoscale import Demand
from mainspring.rules.lanes import lane_of
from mainspring.runtime.backlog import measure_demand
from mainspring.testing import manual
from mainspring.testing.time_travel import travel

START = datetime(2026, 3, 2, 8, tzinfo=UTC)


def make(store: MemoryStore, ran: list[str], **options: Any) -> Mainspring:
    ms = Mainspring(store=store, **options)

    @ms.task
    async def note(word: str = "fired") -> None:
        ran.append(word)

    @ms.task(limit=1)
    async def alone(word: str) -> None:
        ran.append(word)

    @ms.task(retry=Retry(max_attempts=2, initial="1h", jitter=0))
    async def fails() -> None:
        raise ValueError("once more, later")

    return ms


async def test_a_worker_runs_what_was_enqueued_and_plans_nothing() -> None:
    store, ran = MemoryStore(), list[str]()
    planner = make(store, ran)
    async with travel(planner, START) as t:
        await planner.schedule("s", "note", every="1m")
        await t.advance("2m30s")
    assert ran == ["fired", "fired"]
    worker = make(store, ran)
    async with travel(worker, START + timedelta(minutes=3), role="worker") as t:
        await worker.tasks["note"].enqueue("by hand")
        await t.advance("10m")
        assert ran == ["fired", "fired", "by hand"]
        book = await ledger(store, t.clock.now())
        assert (book.planned, book.unexplained) == (2, 0)
        assert book.behind > 0  # reported, not hidden: an instance should plan
    async with travel(planner, START + timedelta(minutes=20)) as t:
        await t.advance("1s")
        assert (await ledger(store, t.clock.now())).behind == 0


async def test_a_worker_declares_no_schedules_and_says_that_it_knows_them() -> None:
    store, ran = MemoryStore(), list[str]()
    ms = make(store, ran)
    ms.cron("* * * * *")(_declared)
    async with travel(ms, START, role="worker") as t:
        await t.advance("1h")
        assert not await store.find(Schedules())
        assert not await ms.events(types=[ScheduleCreated])
        ((_, said),) = await list_instances(store)
        assert said.declares.keys() == {"_declared"}


async def _declared() -> None: ...


async def test_workers_alone_rescue_what_a_dead_one_held_and_open_gates() -> None:
    store, ran = MemoryStore(), list[str]()
    dead = make(store, ran, lease_ttl="30s")
    async with manual(dead, START) as t:
        await dead.tasks["alone"].enqueue("first")
        await dead.tasks["alone"].enqueue("second")
        taken = await store.claim(Offer("dead", (lane_of("default", "default"),), ("alone",), 30_000), 10)
        assert len(taken.claims) == 1  # and the other waits behind the gate
        assert [run.state for run in await t.runs()].count(State.RUNNING) == 1
    worker = make(store, ran, lease_ttl="30s")
    async with travel(worker, START + timedelta(seconds=20), role="worker") as t:
        assert ran == []
        await t.advance("15s")
        assert sorted(ran) == ["first", "second"]
        assert len(await worker.events(types=[LeaseExpired])) == 1


async def test_a_worker_tells_version_labels_queues_and_load() -> None:
    store = MemoryStore()
    ms = make(store, [], version="1.4", labels={"zone": "eu"}, queues=["default", "mail"], concurrency=7, name="shop")
    async with travel(ms, START, role="worker"):
        ((lease, one),) = await list_instances(store)
        assert lease.live
        assert (one.app, one.version, one.role, one.labels) == ("shop", "1.4", "worker", {"zone": "eu"})
        assert (one.queues, one.running, one.concurrency) == (("default", "mail"), 0, 7)
        assert one.since == int(START.timestamp() * 1000)
    ((lease, _),) = await list_instances(store)
    assert not lease.live


async def test_instances_of_many_restarts_are_all_seen() -> None:
    store = MemoryStore()
    for number in range(1_203):
        lease = await store.lease(f"{INSTANCE_PREFIX}{number}", f"{number}", 1_000, data='{"app":"a"}')
        assert isinstance(lease, Lease)
    assert len(await list_instances(store)) == 1_203


async def test_the_demand_counts_what_these_workers_could_take_now() -> None:
    store, ran = MemoryStore(), list[str]()
    ms = make(store, ran)
    async with manual(ms, START) as t:
        await ms.tasks["note"].enqueue_many([(f"{n}",) for n in range(12)])
        await ms.tasks["note"].using(delay="1h").enqueue("later")
        await ms.tasks["note"].using(queue="mail").enqueue("another queue")
        runtime = t.runtime
        assert await measure_demand(runtime, "here", set(), 100) == Demand(12, 0)
        assert await measure_demand(runtime, "here", set(), 5) == Demand(5, 0, at_least=True)
        runtime.handlers = {}
        assert await measure_demand(runtime, "here", set(), 100) == Demand(0, 0)


async def test_runs_behind_a_gate_are_no_reason_for_another_worker() -> None:
    store, ran = MemoryStore(), list[str]()
    ms = make(store, ran)
    async with manual(ms, START) as t:
        await ms.tasks["alone"].enqueue_many([("a",), ("b",), ("c",)])
        assert t.runtime.worker is not None
        await t.runtime.worker.run_once()
        found = await measure_demand(t.runtime, "here", set(), 100)
        assert found.backlog == 0


async def test_what_waits_for_its_next_attempt_is_no_backlog_yet() -> None:
    store = MemoryStore()
    ms = make(store, [])
    async with travel(ms, START, role="worker") as t:
        await ms.tasks["fails"].enqueue()
        await t.settle()
        assert [run.state for run in await t.runs()] == [State.RETRYING]
        assert await measure_demand(t.runtime, "here", set(), 100) == Demand(0, 0)


async def test_the_load_is_what_the_pools_own_processes_say() -> None:
    store = MemoryStore()
    ms = make(store, [])
    async with manual(ms, START) as t:
        for pid, host in ((1, "here"), (2, "here"), (3, "here"), (1, "there")):
            data = f'{{"app":"a","host":"{host}","pid":{pid},"running":{pid * 10}}}'
            await store.lease(f"{INSTANCE_PREFIX}{host}{pid}", f"{host}{pid}", 60_000, data=data)
        assert await measure_demand(t.runtime, "here", {1, 2}, 10) == Demand(0, 30)


@pytest.mark.parametrize("labels", [{"": "x"}, {"zone": ""}, {"zone": 3}, {"zone": "x" * 101}, ["zone"]])
def test_wrong_labels_are_refused(labels: Any) -> None:
    with pytest.raises(InvalidInput, match="labels"):
        Mainspring("memory://", labels=labels)


async def test_a_role_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidInput, match="role"):
        await Mainspring("memory://").run_async(role="planer")  # type: ignore[arg-type]  # that is the point
