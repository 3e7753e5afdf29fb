"""The contract of `apply` for new runs and schedules: guards, results, numbers, and fields that a change may set."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mainspring.model.change import Change, RunAbsent, ScheduleAt
from mainspring.model.events import (
    FiresElided,
    InstanceJoined,
    RunLate,
    RunSkipped,
    RunSucceeded,
    ScheduleDeleted,
    SchedulePaused,
    ScheduleUpdated,
)
from mainspring.model.gate import Gate
from mainspring.model.policies import RetryPolicy, RunOptions
from mainspring.model.run import State
from mainspring.model.schedule import Schedule, Span
from mainspring.ports.store import Agenda, Bodies, Schedules, Spans
from mainspring.testing.contract.bench import ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import (
    T0,
    create_schedule_change,
    enqueue_change,
    fire_run,
    make_body,
    make_run,
    make_schedule,
    make_spec,
    plan_change,
    schedule_change,
    scheduled,
)

HARD_TEXT = '{"q":"it\'s \\"quoted\\" \\\\ \\u0000 \\ud83d\\ude00","ü":"žluťoučký 漢字 😀","nl":"\\n\t%s $1 ?"}'
BIG_TEXT = '{"x":"' + "äβ漢😀" * 5_600 + '"}'


class ApplyInserts(ContractBase):
    """Tests of inserts under the guards `RunAbsent` and `ScheduleAbsent`."""

    @on_store
    async def test_enqueue_is_accepted_and_stamped(self, b: StoreBench) -> None:
        run = make_run(b.ids, due_at=T0 + 5, ns="n", priority=1, lane="n/q", options=RunOptions(retry=RetryPolicy()))
        applied = await b.store.apply([enqueue_change(b.ids, run)], now=T0 + 1)
        assert applied.now == T0 + 1
        assert [(r.status, r.n, r.ok) for r in applied.results] == [("accepted", 1, True)]
        assert await b.run(run.id) == replace(run, n=1, created_at=T0 + 1)

    @on_store
    async def test_enqueue_writes_its_event(self, b: StoreBench) -> None:
        run = make_run(b.ids, gates=("g",), unique_key="k", options=RunOptions(timeout=5))
        change = enqueue_change(b.ids, run)
        await b.accept(change, now=T0 + 3)
        (event,) = await b.events(run_id=run.id)
        assert event.seq > 0
        assert event == replace(scheduled(run), seq=event.seq, at=T0 + 3, n=1, change=change.id)

    @on_store
    async def test_run_absent_refused_by_id(self, b: StoreBench) -> None:
        run = await b.enqueue(task="first")
        (result,) = await b.apply(enqueue_change(b.ids, replace(run, task="second")), now=T0 + 9)
        assert (result.status, result.ok, result.n, result.current) == ("refused", False, 1, run)
        assert await b.run(run.id) == run
        assert await b.names() == ["RunScheduled"]

    @on_store
    async def test_run_absent_refused_by_unique_key(self, b: StoreBench) -> None:
        first = await b.enqueue(unique_key="k")
        other = make_run(b.ids, unique_key="k")
        (result,) = await b.apply(enqueue_change(b.ids, other))
        assert (result.status, result.current) == ("refused", first)
        assert await b.runs() == [first]

    @on_store
    async def test_unique_key_is_of_a_namespace(self, b: StoreBench) -> None:
        await b.enqueue(unique_key="k", ns="one")
        await b.enqueue(unique_key="k", ns="two")
        assert len(await b.runs(unique_key="k")) == 2

    @on_store
    async def test_unique_key_twice_in_one_batch(self, b: StoreBench) -> None:
        first, second = make_run(b.ids, unique_key="k"), make_run(b.ids, unique_key="k")
        results = await b.apply(enqueue_change(b.ids, first), enqueue_change(b.ids, second))
        assert [r.status for r in results] == ["accepted", "refused"]
        assert results[1].current == await b.run(first.id)
        assert [r.id for r in await b.runs()] == [first.id]

    @on_store
    async def test_unique_key_is_free_when_the_run_ended(self, b: StoreBench) -> None:
        await b.enqueue(unique_key="k")
        running = await b.start()
        (result,) = await b.apply(enqueue_change(b.ids, make_run(b.ids, unique_key="k")))
        assert result.status == "refused"
        await b.end(running)
        await b.enqueue(unique_key="k")

    @on_store
    async def test_unique_key_stays_taken_while_retrying(self, b: StoreBench) -> None:
        await b.enqueue(unique_key="k")
        await b.end(await b.start(), State.RETRYING, ready_at=T0 + 60_000)
        (result,) = await b.apply(enqueue_change(b.ids, make_run(b.ids, unique_key="k")))
        assert result.status == "refused"

    @on_store
    async def test_enqueue_repeated(self, b: StoreBench) -> None:
        change = enqueue_change(b.ids, make_run(b.ids, unique_key="k"))
        await b.accept(change)
        (again,) = await b.apply(change, now=T0 + 1)
        assert (again.status, again.ok) == ("repeated", True)
        await b.end(await b.start())
        (late,) = await b.apply(change, now=T0 + 2)
        assert late.status == "repeated"
        assert await b.names() == ["RunScheduled", "RunStarted", "RunSucceeded"]

    @on_store
    async def test_a_run_may_be_inserted_ended(self, b: StoreBench) -> None:
        run = await b.enqueue(now=T0 + 7, state=State.SKIPPED, reason="overlap")
        assert (run.state, run.ended_at, run.created_at, run.n) == (State.SKIPPED, T0 + 7, T0 + 7, 1)
        assert (await b.claim(T0 + 10)).claims == []

    @on_store
    async def test_an_insert_may_carry_two_moves_and_a_note(self, b: StoreBench) -> None:
        run = make_run(b.ids, state=State.SKIPPED, reason="x")
        events = (
            replace(scheduled(replace(run, state=State.WAITING))),
            RunLate(run_id=run.id, late_ms=5),
            RunSkipped(run_id=run.id, reason="x"),
        )
        (result,) = await b.apply(Change(id=b.ids.change(), guard=RunAbsent(run.id), run=run, events=events))
        assert (result.status, result.n) == ("accepted", 2)
        assert (await b.run(run.id)).n == 2
        assert [e.n for e in await b.events(run_id=run.id)] == [1, None, 2]

    @on_store
    async def test_schedule_created(self, b: StoreBench) -> None:
        schedule = make_schedule(b.ids, app="shop", origin="code", digest="d", version="2", owner="me")
        change = create_schedule_change(b.ids, schedule)
        (result,) = await b.apply(change, now=T0 + 4)
        assert (result.status, result.n) == ("accepted", 1)
        assert await b.schedule_row(schedule.id) == replace(schedule, n=1, created_at=T0 + 4, updated_at=T0 + 4)
        (event,) = await b.events(schedule_id=schedule.id)
        assert event == replace(change.events[0], seq=event.seq, at=T0 + 4, n=1, change=change.id)
        (again,) = await b.apply(change, now=T0 + 5)
        assert again.status == "repeated"

    @on_store
    async def test_schedule_absent_refused(self, b: StoreBench) -> None:
        first = await b.schedule(name="nightly")
        by_id = make_schedule(b.ids, id=first.id, name="other")
        by_name = make_schedule(b.ids, name="nightly")
        elsewhere = make_schedule(b.ids, name="nightly", ns="two")
        results = await b.apply(
            create_schedule_change(b.ids, by_id),
            create_schedule_change(b.ids, by_name),
            create_schedule_change(b.ids, elsewhere),
        )
        assert [(r.status, r.current) for r in results] == [("refused", first), ("refused", first), ("accepted", None)]
        assert len(await b.events()) == 2

    @on_store
    async def test_schedule_name_twice_in_one_batch(self, b: StoreBench) -> None:
        rows = [make_schedule(b.ids, name="same") for _ in range(2)]
        results = await b.apply(*(create_schedule_change(b.ids, row) for row in rows))
        assert [r.status for r in results] == ["accepted", "refused"]
        assert [s.id for s in await b.store.find(Schedules(name="same"))] == [rows[0].id]

    @on_store
    async def test_name_is_free_after_deletion(self, b: StoreBench) -> None:
        old = await b.schedule(name="nightly")
        deleted = ScheduleDeleted(schedule_id=old.id)
        await b.accept(schedule_change(b.ids, old, deleted, state="deleted", next_at=None))
        new = await b.schedule(name="nightly")
        assert await b.store.find(Schedules(ns="default", name="nightly")) == [new]
        # A later write to the deleted row must not free the name, which belongs to the new schedule now.
        row = await b.schedule_row(old.id)
        await b.accept(schedule_change(b.ids, row, ScheduleDeleted(schedule_id=old.id), reason="again"))
        (result,) = await b.apply(create_schedule_change(b.ids, make_schedule(b.ids, name="nightly")))
        assert (result.status, result.current) == ("refused", new)

    @on_store
    async def test_bodies_are_stored_once(self, b: StoreBench) -> None:
        first = await b.enqueue(payload='{"a":1}')
        second = await b.enqueue(payload='{"a":1}')
        assert first.body == second.body == make_body('{"a":1}').id
        assert await b.store.find(Bodies(ids=(first.body or "",))) == [make_body('{"a":1}')]

    @on_store
    async def test_payload_survives_byte_for_byte(self, b: StoreBench) -> None:
        for text in (HARD_TEXT, BIG_TEXT, "", "[]", "12345678901234567890", "0.1e-7"):
            run = await b.enqueue(payload=text)
            assert [body.data for body in await b.store.find(Bodies(ids=(run.body or "",)))] == [text]
            (claim,) = (await b.claim()).claims
            assert claim.body == text
            await b.end(claim.run, result=text)
            assert (await b.run(run.id)).result == text
            last = (await b.events(run_id=run.id))[-1]
            assert isinstance(last, RunSucceeded)
            assert last.result == text

    @on_store
    async def test_gate_upsert_changes_max_and_keeps_held(self, b: StoreBench) -> None:
        await b.enqueue(made=[Gate("g", 2)], gates=("g",))
        await b.start()
        assert await b.gate("g") == Gate("g", 2, held=1)
        await b.enqueue(made=[Gate("g", 5)])
        assert await b.gate("g") == Gate("g", 5, held=1)

    @on_store
    async def test_a_refused_change_writes_nothing(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        run = await b.enqueue(made=[Gate("g", 1)], gates=("g",))
        await b.start()
        change = Change(
            id=b.ids.change(),
            guard=RunAbsent(run.id),
            run=run,
            runs=(fire_run(schedule, T0 + 1_000),),
            spans=(Span(schedule.id, 1, T0, T0 + 5, 1, "x"),),
            bodies=(make_body("never"),),
            gates=(Gate("g", 9), Gate("h", 1)),
            touches=(schedule.id,),
            releases=("g",),
            events=(scheduled(run), scheduled(fire_run(schedule, T0 + 1_000)), RunLate(run_id=run.id, late_ms=1)),
        )
        before = await b.events()
        fresh = make_run(b.ids)
        results = await b.apply(change, enqueue_change(b.ids, fresh))
        assert [r.status for r in results] == ["refused", "accepted"]
        assert {r.id for r in await b.runs()} == {run.id, fresh.id}
        assert await b.store.find(Spans()) == []
        assert await b.store.find(Bodies(ids=(make_body("never").id,))) == []
        assert await b.gate("g") == Gate("g", 1, held=1)
        assert (await b.store.due(Agenda.TOUCHED, 10, now=T0)).schedules == ()
        assert [e.run_id for e in (await b.events())[len(before) :]] == [fresh.id]

    @on_store
    async def test_a_change_without_a_guard_may_hold_notes(self, b: StoreBench) -> None:
        change = Change(id=b.ids.change(), events=(InstanceJoined(instance="i1", version="3"),))
        (result,) = await b.apply(change, now=T0 + 2)
        assert result.status == "accepted"
        (note,) = await b.events()
        assert note == replace(change.events[0], seq=note.seq, at=T0 + 2, change=change.id)

    @on_store
    async def test_empty_batch(self, b: StoreBench) -> None:
        applied = await b.store.apply([], now=T0)
        assert (applied.now, applied.results) == (T0, [])


class ApplyPlans(ContractBase):
    """Tests of the guard `ScheduleAt`: compare-and-set on revision, cursor and event number."""

    @on_store
    async def test_plan(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        fires = [T0 + 1_000, T0 + 2_000]
        (result,) = await b.apply(plan_change(b.ids, schedule, fires), now=T0 + 2_500)
        assert (result.status, result.n) == ("accepted", schedule.n)
        row = await b.schedule_row(schedule.id)
        assert (row.cursor, row.next_at, row.fired, row.n) == (T0 + 2_000, T0 + 3_000, 2, schedule.n)
        expected = [replace(fire_run(schedule, fire), n=1, created_at=T0 + 2_500) for fire in fires]
        assert await b.runs(schedule_id=schedule.id) == expected
        for run in expected:
            assert [e.n for e in await b.events(run_id=run.id)] == [1]

    @on_store
    async def test_plan_repeated(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        change = plan_change(b.ids, schedule, [T0 + 1_000])
        await b.accept(change)
        (again,) = await b.apply(change)
        assert (again.status, again.ok) == ("repeated", True)
        assert len(await b.runs()) == 1

    @on_store
    async def test_schedule_compare_and_set(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        stale = (
            ScheduleAt(schedule.id, 2, schedule.cursor, schedule.n),
            ScheduleAt(schedule.id, 1, schedule.cursor + 1, schedule.n),
            ScheduleAt(schedule.id, 1, schedule.cursor, schedule.n + 1),
        )
        for guard in stale:
            good = plan_change(b.ids, schedule, [T0 + 1_000])
            change = Change(id=good.id, guard=guard, schedule=good.schedule, runs=good.runs, events=good.events)
            (result,) = await b.apply(change)
            assert (result.status, result.n, result.current) == ("refused", schedule.n, schedule)
        assert await b.runs() == []
        missing = ScheduleAt("00000000-0000-7000-8000-ffffffffffff", 1, T0, 1)
        row = replace(schedule, id=missing.id)
        (result,) = await b.apply(Change(id=b.ids.change(), guard=missing, schedule=row))
        assert (result.status, result.current) == ("refused", None)

    @on_store
    async def test_two_planners_one_wins(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        await b.accept(plan_change(b.ids, schedule, [T0 + 1_000]))
        (result,) = await b.apply(plan_change(b.ids, schedule, [T0 + 1_000, T0 + 2_000]))
        assert result.status == "refused"
        assert isinstance(result.current, Schedule)
        assert result.current.cursor == T0 + 1_000
        assert len(await b.runs()) == 1

    @on_store
    async def test_planned_run_that_exists_is_skipped(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        by_id = fire_run(schedule, T0 + 1_000)
        by_key = fire_run(schedule, T0 + 2_000, id=b.ids.next())
        await b.accept(*(enqueue_change(b.ids, run) for run in (by_id, by_key)))
        before = {run.id: run for run in await b.runs()}
        plan = plan_change(b.ids, schedule, [T0 + 1_000, T0 + 2_000, T0 + 3_000])
        await b.accept(plan, now=T0 + 9)
        third = replace(fire_run(schedule, T0 + 3_000), n=1, created_at=T0 + 9)
        assert {run.id: run for run in await b.runs()} == {**before, third.id: third}
        assert (await b.schedule_row(schedule.id)).cursor == T0 + 3_000
        assert [e.run_id for e in await b.events(types=("RunScheduled",))] == [by_id.id, by_key.id, third.id]

    @on_store
    async def test_runs_without_fire_key_do_not_collide(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        for _ in range(2):
            schedule = await b.schedule_row(schedule.id)
            extra = tuple(make_run(b.ids, schedule_id=schedule.id, origin="trigger") for _ in range(2))
            plan = plan_change(b.ids, schedule, [], next_at=T0 + 9_000)
            await b.accept(replace(plan, runs=extra, events=tuple(scheduled(run) for run in extra)))
        assert len(await b.runs(schedule_id=schedule.id)) == 4

    @on_store
    async def test_spans_come_with_their_event(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        span = Span(schedule.id, 1, T0, T0 + 60_000, 60, "paused", ns=schedule.ns)
        elided = FiresElided(
            schedule_id=schedule.id, revision=1, after=T0, through=T0 + 60_000, count=60, reason="paused"
        )
        change = plan_change(b.ids, schedule, [T0 + 61_000], spans=[span], events=[elided])
        (result,) = await b.apply(change, now=T0 + 61_000)
        assert (result.status, result.n) == ("accepted", 2)
        assert await b.store.find(Spans(schedule_id=schedule.id)) == [span]
        row = await b.schedule_row(schedule.id)
        assert (row.n, row.updated_at, row.created_at) == (2, T0 + 61_000, T0)

    @on_store
    async def test_schedule_values_and_numbers(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        spec = make_spec(task="u", overlap="queue_all", gates=("g",), max_runs=4)
        updated = ScheduleUpdated(schedule_id=schedule.id, revision=2, spec=spec, anchor=T0 + 1, cursor=T0 + 2)
        paused = SchedulePaused(schedule_id=schedule.id, reason="maintenance", until=T0 + 90)
        values: dict[str, Any] = {
            "spec": spec,
            "revision": 2,
            "anchor": T0 + 1,
            "cursor": T0 + 2,
            "next_at": T0 + 90,
            "state": "paused",
            "reason": "maintenance",
            "until": T0 + 90,
            "fired": 3,
            "digest": "d2",
            "version": "9",
        }
        (result,) = await b.apply(schedule_change(b.ids, schedule, updated, paused, **values), now=T0 + 5)
        assert (result.status, result.n) == ("accepted", 3)
        row = await b.schedule_row(schedule.id)
        assert row == replace(schedule, n=3, updated_at=T0 + 5, **values)
        assert [e.n for e in await b.events(schedule_id=schedule.id)] == [1, 2, 3]
