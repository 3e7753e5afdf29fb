"""The contract of `find` and `tail`: queries, filters, order and pages."""

from __future__ import annotations

from typing import Any

from mainspring.model.change import Change
from mainspring.model.events import InstanceJoined, ScheduleDeleted, SchedulePaused, ScheduleResumed
from mainspring.model.gate import Gate
from mainspring.model.run import State
from mainspring.model.schedule import Span
from mainspring.ports.store import (
    Bodies,
    Events,
    Gates,
    LaneCount,
    Lanes,
    LastRuns,
    Leases,
    Query,
    Runs,
    Schedules,
    Spans,
    Tallies,
)
from mainspring.testing.contract.bench import ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import (
    T0,
    enqueue_change,
    fire_run,
    make_body,
    make_run,
    plan_change,
    schedule_change,
)


class FindRuns(ContractBase):
    """Tests of `find` for runs."""

    @on_store
    async def test_order_and_ids(self, b: StoreBench) -> None:
        runs = [await b.enqueue() for _ in range(4)]
        assert await b.store.find(Runs()) == runs[::-1]
        assert await b.store.find(Runs(oldest_first=True)) == runs
        assert await b.store.find(Runs(id=runs[1].id)) == [runs[1]]
        assert await b.store.find(Runs(id=b.ids.next())) == []
        asked = (runs[2].id, runs[0].id, b.ids.next())
        assert await b.store.find(Runs(ids=asked)) == [runs[2], runs[0]]
        assert await b.store.find(Runs(ids=())) == []

    @on_store
    async def test_an_id_is_found_in_its_namespace_only(self, b: StoreBench) -> None:
        schedule = await b.schedule(ns="one")
        run = await b.enqueue(ns="one")
        assert await b.store.find(Schedules(ns="one", id=schedule.id, limit=1)) == [schedule]
        assert await b.store.find(Schedules(ns="two", id=schedule.id, limit=1)) == []
        assert await b.store.find(Runs(ns="one", id=run.id, limit=1)) == [run]
        assert await b.store.find(Runs(ns="two", id=run.id, limit=1)) == []

    @on_store
    async def test_each_filter(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        fire = fire_run(schedule, T0 + 1_000, id=b.ids.next())
        await b.accept(enqueue_change(b.ids, fire), now=T0 + 1)
        other = await b.enqueue(ns="two", task="u", unique_key="k", due_at=T0 + 50, now=T0 + 2)
        await b.enqueue(task="v", now=T0 + 3)
        dead = await b.end(await b.start(T0 + 4, tasks=("v",)), State.FAILED, now=T0 + 5)
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"ns": "two"}, [other.id]),
            ({"schedule_id": schedule.id}, [fire.id]),
            ({"schedule_id": b.ids.next()}, []),
            ({"task": "u"}, [other.id]),
            ({"states": (State.FAILED,)}, [dead.id]),
            ({"states": (State.FAILED, State.WAITING)}, [fire.id, other.id, dead.id]),
            ({"states": ()}, []),
            ({"origin": "fire"}, [fire.id]),
            ({"origin": "enqueue"}, [other.id, dead.id]),
            ({"schedule_id": schedule.id, "fire_time": T0 + 1_000}, [fire.id]),
            ({"fire_time": T0 + 999}, []),
            ({"fired_since": T0 + 999}, [fire.id]),
            ({"fired_since": T0 + 1_000}, []),
            ({"created_since": T0 + 2}, [other.id, dead.id]),
            ({"created_since": T0 + 4}, []),
            ({"due_before": T0 + 50}, [other.id, dead.id]),
            ({"due_before": T0 + 49}, [dead.id]),
            ({"dead": True}, [dead.id]),
            ({"dead": False}, [fire.id, other.id]),
            ({"unique_key": "k"}, [other.id]),
            ({"unique_key": "K"}, []),
            ({"ns": "default", "task": "v", "dead": True, "states": (State.FAILED,)}, [dead.id]),
            ({"id": dead.id, "ns": "two"}, []),
        ]
        for query, expected in cases:
            assert [run.id for run in await b.runs(**query)] == expected, query

    @on_store
    async def test_pages_without_gaps_or_repeats(self, b: StoreBench) -> None:
        runs = [make_run(b.ids, task="t" if i % 3 else "u") for i in range(25)]
        await b.accept(*(enqueue_change(b.ids, run) for run in runs))
        wanted = [run.id for run in runs if run.task == "t"]
        for oldest_first in (True, False):
            seen: list[str] = []
            after: str | None = None
            while page := await b.store.find(Runs(task="t", limit=4, after=after, oldest_first=oldest_first)):
                assert len(page) <= 4
                seen += [run.id for run in page]
                after = page[-1].id
            assert seen == (wanted if oldest_first else wanted[::-1])

    @on_store
    async def test_the_last_run_of_each_schedule(self, b: StoreBench) -> None:
        one, two, none = await b.schedule(name="one"), await b.schedule(name="two"), await b.schedule(name="none")
        for fires in ([T0 + 1_000, T0 + 2_000], [T0 + 3_000]):
            await b.accept(*(enqueue_change(b.ids, fire_run(one, at, id=b.ids.next())) for at in fires))
        await b.accept(enqueue_change(b.ids, fire_run(two, T0 + 1_500, id=b.ids.next())))
        await b.enqueue()
        found = await b.store.find(LastRuns(ids=(two.id, none.id, one.id, b.ids.next())))
        last = sorted((run.schedule_id, run.fire_time) for run in found)
        assert last == sorted([(one.id, T0 + 3_000), (two.id, T0 + 1_500)])
        assert await b.store.find(LastRuns()) == []


class FindOthers(ContractBase):
    """Tests of `find` for the other queries, and of `tail`."""

    @on_store
    async def test_schedules(self, b: StoreBench) -> None:
        one = await b.schedule(name="one", app="shop")
        two = await b.schedule(name="two", ns="n2")
        three = await b.schedule(name="three")
        gone = await b.schedule(name="gone")
        stuck = await b.schedule(name="stuck", ns="n3")
        stuck_paused = await b.schedule(name="stuck and paused", ns="n3")
        await b.accept(
            schedule_change(b.ids, three, SchedulePaused(schedule_id=three.id, reason="x"), state="paused"),
            schedule_change(
                b.ids, stuck, ScheduleResumed(schedule_id=stuck.id, cursor=stuck.cursor, reason="x"), next_at=None
            ),
            schedule_change(
                b.ids,
                stuck_paused,
                SchedulePaused(schedule_id=stuck_paused.id, reason="x"),
                state="paused",
                next_at=None,
            ),
            schedule_change(b.ids, gone, ScheduleDeleted(schedule_id=gone.id), state="deleted", next_at=None),
        )
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({}, [one.id, two.id, three.id, stuck.id, stuck_paused.id]),
            ({"unplanned": True}, [stuck.id]),
            ({"unplanned": True, "ns": "n2"}, []),
            ({"id": two.id}, [two.id]),
            ({"id": gone.id}, [gone.id]),
            ({"ids": (three.id, b.ids.next(), gone.id)}, [three.id, gone.id]),
            ({"ids": (one.id, two.id), "ns": "n2"}, [two.id]),
            ({"ids": ()}, []),
            ({"id": b.ids.next()}, []),
            ({"ns": "n2"}, [two.id]),
            ({"ns": "default", "name": "one"}, [one.id]),
            ({"name": "two", "ns": "default"}, []),
            ({"name": "gone"}, []),
            ({"states": ("paused",)}, [three.id, stuck_paused.id]),
            ({"states": ("active", "deleted")}, [one.id, two.id, gone.id, stuck.id]),
            ({"app": "shop"}, [one.id]),
            ({"states": ("active",), "due_before": (one.next_at or 0) - 1}, []),
            ({"states": ("active",), "due_before": one.next_at}, [one.id, two.id]),
            ({"limit": 2}, [one.id, two.id]),
            ({"limit": 2, "after": two.id}, [three.id, stuck.id]),
        ]
        for query, expected in cases:
            assert [row.id for row in await b.store.find(Schedules(**query))] == expected, query

    @on_store
    async def test_find_spans(self, b: StoreBench) -> None:
        one, two = await b.schedule(), await b.schedule()
        spans = [
            Span(one.id, 1, T0, T0 + 100, 4, "missed"),
            Span(one.id, 1, T0 + 200, T0 + 300, 2, "paused"),
            Span(two.id, 1, T0, T0 + 50, 1, "window"),
        ]
        await b.accept(
            plan_change(b.ids, one, [], spans=spans[1::-1]),
            plan_change(b.ids, two, [], spans=spans[2:]),
        )
        assert await b.store.find(Spans()) == spans
        assert await b.store.find(Spans(schedule_id=one.id)) == spans[:2]
        assert await b.store.find(Spans(since=T0 + 100)) == spans[1:2]
        assert await b.store.find(Spans(schedule_id=one.id, since=T0 + 99)) == spans[:2]
        assert await b.store.find(Spans(limit=1)) == spans[:1]

    @on_store
    async def test_find_events(self, b: StoreBench) -> None:
        schedule = await b.schedule(now=T0)
        await b.accept(plan_change(b.ids, schedule, [T0 + 1_000]), now=T0 + 1)
        run = await b.enqueue(now=T0 + 2)
        await b.end(await b.start(T0 + 3, ids=[run.id]), now=T0 + 4)
        fire = fire_run(schedule, T0 + 1_000).id
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({}, ["ScheduleCreated", "RunScheduled", "RunScheduled", "RunStarted", "RunSucceeded"]),
            ({"run_id": run.id}, ["RunScheduled", "RunStarted", "RunSucceeded"]),
            ({"run_id": fire}, ["RunScheduled"]),
            ({"run_id": b.ids.next()}, []),
            ({"schedule_id": schedule.id}, ["ScheduleCreated", "RunScheduled"]),
            ({"schedule_id": schedule.id, "run_id": run.id}, []),
            ({"types": ("RunStarted", "ScheduleCreated")}, ["ScheduleCreated", "RunStarted"]),
            ({"types": ()}, []),
            ({"since": T0 + 3}, ["RunStarted", "RunSucceeded"]),
            ({"until": T0 + 1}, ["ScheduleCreated"]),
            ({"ns": "default", "types": ("RunStarted",)}, ["RunStarted"]),
            ({"ns": "other"}, []),
            ({"ns": "other", "run_id": run.id}, []),
            ({"ns": "other", "schedule_id": schedule.id}, []),
            ({"ns": "default", "schedule_id": schedule.id}, ["ScheduleCreated", "RunScheduled"]),
            ({"since": T0 + 1, "until": T0 + 3}, ["RunScheduled", "RunScheduled"]),
            ({"limit": 1}, ["ScheduleCreated"]),
            ({"run_id": run.id, "limit": 2}, ["RunScheduled", "RunStarted"]),
        ]
        for query, expected in cases:
            assert await b.names(**query) == expected, query

    @on_store
    async def test_event_pages_and_tail(self, b: StoreBench) -> None:
        assert await b.store.tail(0, 10) == []
        for i in range(11):
            note = InstanceJoined(instance=f"i{i}", owner="o", actor="a", epoch=3, attempt=4)
            await b.accept(Change(id=b.ids.change(), events=(note,)), now=T0 + i)
        log = await b.store.find(Events())
        assert [e.instance for e in log if isinstance(e, InstanceJoined)] == [f"i{i}" for i in range(11)]
        assert {(e.owner, e.actor, e.epoch, e.attempt) for e in log} == {("o", "a", 3, 4)}
        seen, after = [], 0
        while page := await b.store.tail(after, 4):
            seen += page
            after = page[-1].seq
        assert seen == log
        seen, after = [], 0
        while page := await b.store.find(Events(limit=3, after=str(after))):
            seen += page
            after = page[-1].seq
        assert seen == log
        assert await b.store.tail(log[-1].seq, 10) == []

    @on_store
    async def test_bodies(self, b: StoreBench) -> None:
        for text in ("1", "2"):
            await b.enqueue(payload=text)
        one, two = make_body("1"), make_body("2")
        found = await b.store.find(Bodies(ids=(two.id, one.id, "unknown")))
        assert sorted(found, key=lambda body: body.data) == [one, two]
        assert await b.store.find(Bodies()) == []

    @on_store
    async def test_gates(self, b: StoreBench) -> None:
        gates = [Gate(name, i, closed_until=i) for i, name in enumerate(("a", "b", "c"))]
        await b.enqueue(made=gates[::-1])
        assert await b.store.find(Gates()) == gates
        assert await b.store.find(Gates(names=("c", "a", "x"))) == [gates[0], gates[2]]
        assert await b.store.find(Gates(names=())) == []
        assert await b.store.find(Gates(limit=2)) == gates[:2]
        assert await b.store.find(Gates(limit=2, after="b")) == gates[2:]

    @on_store
    async def test_find_lanes(self, b: StoreBench) -> None:
        for lane, priority, count in (("n/a", 2, 2), ("n/a", 0, 1), ("n/b", 1, 3)):
            for _ in range(count):
                await b.enqueue(lane=lane, priority=priority, state=State.RETRYING if count == 1 else State.WAITING)
        await b.enqueue(lane="n/c", made=[Gate("g", 0)], gates=("g",))
        await b.enqueue(lane="n/d", state=State.BLOCKED)
        await b.claim(lanes=("n/c",))
        await b.start(lanes=("n/b",), limit=1)
        expected = [LaneCount("n/a", 0, 1), LaneCount("n/a", 2, 2), LaneCount("n/b", 1, 2)]
        assert await b.store.find(Lanes()) == expected

    @on_store
    async def test_every_query_of_an_empty_store_returns_no_rows(self, b: StoreBench) -> None:
        queries: list[Query[Any]] = [Runs(), Schedules(), Spans(), Events(), Gates(), Lanes(), Leases(), Tallies()]
        for query in queries:
            assert await b.store.find(query) == []
