"""The contract of `purge`: the rows that it removes, the rows that stay, and the counts and snapshots it leaves."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.model.change import Change
from mainspring.model.events import (
    InstanceJoined,
    LogCompacted,
    ScheduleDeleted,
    ScheduleFinished,
    ScheduleSnapshot,
    ScheduleUpdated,
)
from mainspring.model.gate import Gate
from mainspring.model.instant import DAY_MS
from mainspring.model.retention import Purged, Retention, Tally
from mainspring.model.revisions import fold_definitions
from mainspring.model.run import Run, State
from mainspring.model.schedule import Span
from mainspring.ports.store import Agenda, Bodies, Events, Gates, Leases, Runs, Schedules, Spans, Tallies
from mainspring.testing.contract.bench import ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import (
    T0,
    enqueue_change,
    fire_run,
    make_body,
    make_run,
    make_spec,
    plan_change,
    schedule_change,
)

PURGE_ALL = Retention(ended_before=T0 + 365 * DAY_MS)


class Purges(ContractBase):
    """Tests of `purge`."""

    @on_store
    async def test_nothing_to_do(self, b: StoreBench) -> None:
        await b.enqueue()
        assert await b.store.purge(PURGE_ALL, 100, now=T0 + 9) == Purged()
        assert await b.names() == ["RunScheduled"]

    @on_store
    async def test_ended_runs_go_with_their_streams(self, b: StoreBench) -> None:
        for _ in range(2):
            await b.enqueue()
        one, two = (claim.run for claim in (await b.claim()).claims)
        await b.end(one, now=T0 + 10)
        await b.end(two, now=T0 + 20)
        purged = await b.store.purge(Retention(ended_before=T0 + 20), 100, now=T0 + 30)
        assert purged == Purged(runs=1, events=3)
        assert [run.id for run in await b.runs()] == [two.id]
        assert await b.events(run_id=one.id) == []
        assert len(await b.events(run_id=two.id)) == 3
        compacted = (await b.events())[-1]
        assert isinstance(compacted, LogCompacted)
        assert (compacted.at, compacted.n, compacted.events, compacted.streams) == (T0 + 30, None, 3, 1)
        assert [event.seq for event in await b.store.tail(0, 99)] == [event.seq for event in await b.events()]
        assert await b.store.purge(Retention(ended_before=T0 + 20), 100, now=T0 + 31) == Purged()

    @on_store
    async def test_open_runs_stay(self, b: StoreBench) -> None:
        await b.enqueue()
        await b.enqueue(state=State.BLOCKED)
        await b.enqueue(due_at=T0 + 10 * DAY_MS)
        await b.end(await b.start(), State.RETRYING, ready_at=T0)
        await b.enqueue(task="u")
        await b.start(tasks=("u",))
        rows, log = await b.runs(), await b.events()
        assert await b.store.purge(PURGE_ALL, 100, now=T0) == Purged()
        assert (await b.runs(), await b.events()) == (rows, log)

    @on_store
    async def test_dead_letters_stay_unless_keep_dead_is_off(self, b: StoreBench) -> None:
        await b.enqueue()
        dead = await b.end(await b.start(), State.FAILED)
        assert (await b.store.purge(PURGE_ALL, 100, now=T0)).runs == 0
        assert await b.run(dead.id) == dead
        assert (await b.store.purge(replace(PURGE_ALL, keep_dead=False), 100, now=T0)).runs == 1
        assert await b.runs() == []

    @on_store
    async def test_limit_and_more(self, b: StoreBench) -> None:
        runs = [make_run(b.ids, state=State.SKIPPED) for _ in range(5)]
        await b.accept(*(enqueue_change(b.ids, run) for run in runs))
        answers = [await b.store.purge(PURGE_ALL, 2, now=T0) for _ in range(3)]
        assert [(answer.runs, answer.more) for answer in answers] == [(2, True), (2, True), (1, False)]
        assert await b.store.find(Tallies()) == [Tally(None, T0 // DAY_MS, "adhoc/skipped", 5)]

    @on_store
    async def test_tallies(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        fires = [T0 + 1_000, T0 + 2_000, T0 + DAY_MS, T0 + DAY_MS + 1_000]
        span = Span(schedule.id, 1, T0 + 2_000, T0 + DAY_MS - 1_000, 86_397, "paused")
        await b.accept(plan_change(b.ids, schedule, fires, spans=[span]), now=T0 + 2 * DAY_MS)
        await b.enqueue(due_at=T0, now=T0 + DAY_MS)
        manual = fire_run(schedule, T0 + DAY_MS, id=b.ids.next(), fire_key="manual", origin="trigger")
        await b.accept(enqueue_change(b.ids, manual))
        claims = (await b.claim(T0 + 2 * DAY_MS)).claims
        assert len(claims) == 6
        for claim in claims:
            last = claim.run.fire_key == str(fires[-1])
            await b.end(claim.run, State.CANCELLED if last else State.SUCCEEDED, now=T0 + 2 * DAY_MS)
        purged = await b.store.purge(PURGE_ALL, 100, now=T0 + 3 * DAY_MS)
        assert (purged.runs, purged.spans, purged.more) == (6, 1, False)
        day = T0 // DAY_MS
        mine = {
            Tally(schedule.id, day, "fire/succeeded", 2),
            Tally(schedule.id, day + 1, "fire/succeeded", 1),
            Tally(schedule.id, day + 1, "fire/cancelled", 1),
            Tally(schedule.id, day + 1, "adhoc/succeeded", 1),
            Tally(schedule.id, day, "span/paused", 86_397),
        }
        assert set(await b.store.find(Tallies(schedule_id=schedule.id))) == mine
        assert set(await b.store.find(Tallies())) == {*mine, Tally(None, day + 1, "adhoc/succeeded", 1)}
        assert await b.store.find(Spans()) == []

    @on_store
    async def test_a_compaction_event_counts_the_tallies_it_changed(self, b: StoreBench) -> None:
        """The event has the number of tallies (counts of removed rows) that this purge changed.

        Why not the number of all tallies: to count them would take longer every year.
        """
        for day in (T0, T0 + DAY_MS):
            await b.accept(enqueue_change(b.ids, make_run(b.ids, state=State.SKIPPED)), now=day)
            await b.store.purge(PURGE_ALL, 100, now=day)
        notes = await b.store.find(Events(types=("LogCompacted",)))
        assert [note.tallies for note in notes if isinstance(note, LogCompacted)] == [1, 1]
        assert len(await b.store.find(Tallies())) == 2

    @on_store
    async def test_young_spans_stay(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        old, young = Span(schedule.id, 1, T0, T0 + 10, 1, "x"), Span(schedule.id, 1, T0 + 10, T0 + 20, 1, "x")
        await b.accept(plan_change(b.ids, schedule, [], spans=[old, young]))
        purged = await b.store.purge(Retention(ended_before=T0 + 20), 100, now=T0 + 30)
        assert (purged.spans, purged.runs) == (1, 0)
        assert await b.store.find(Spans()) == [young]
        assert await b.store.find(Tallies()) == [Tally(schedule.id, T0 // DAY_MS, "span/x", 1)]

    @on_store
    async def test_schedule_stream_becomes_a_snapshot(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        spec = make_spec(task="u")
        updated = ScheduleUpdated(schedule_id=schedule.id, revision=2, spec=spec, anchor=T0, cursor=T0 + 5)
        await b.accept(schedule_change(b.ids, schedule, updated, revision=2, spec=spec, cursor=T0 + 5), now=T0 + 6)
        row = await b.schedule_row(schedule.id)
        await b.accept(plan_change(b.ids, row, [T0 + 1_000, T0 + 2_000]))
        first = await b.start(T0 + 1_500, tasks=("u",))
        await b.end(first, now=T0 + 1_600)
        bystander = await b.schedule()
        row = await b.schedule_row(schedule.id)
        before = fold_definitions(await b.events(schedule_id=schedule.id))
        purged = await b.store.purge(PURGE_ALL, 100, now=T0 + 9_000)
        assert purged == Purged(runs=1, events=5)
        stream = [e for e in await b.events(schedule_id=schedule.id) if e.run_id is None]
        (snapshot,) = stream
        assert isinstance(snapshot, ScheduleSnapshot)
        assert (snapshot.n, snapshot.at, snapshot.state) == (row.n, T0 + 9_000, row)
        assert snapshot.definitions == before
        assert [d.revision for d in snapshot.definitions] == [1, 2]
        assert await b.schedule_row(schedule.id) == row
        assert await b.names(schedule_id=bystander.id) == ["ScheduleCreated"]
        assert await b.names() == ["RunScheduled", "ScheduleCreated", "ScheduleSnapshot", "LogCompacted"]

    @on_store
    async def test_a_snapshot_includes_the_snapshot_before_it(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        await b.accept(plan_change(b.ids, schedule, [T0 + 1_000], state=State.SKIPPED))
        await b.store.purge(PURGE_ALL, 100, now=T0 + 2_000)
        row = await b.schedule_row(schedule.id)
        updated = ScheduleUpdated(schedule_id=row.id, revision=2, spec=row.spec, anchor=T0, cursor=row.cursor)
        await b.accept(schedule_change(b.ids, row, updated, revision=2), now=T0 + 3_000)
        row = await b.schedule_row(schedule.id)
        assert [e.n for e in await b.events(schedule_id=row.id)] == [1, 2]
        await b.accept(plan_change(b.ids, row, [T0 + 2_000], state=State.SKIPPED))
        await b.store.purge(PURGE_ALL, 100, now=T0 + 4_000)
        (snapshot,) = await b.events(schedule_id=row.id)
        assert isinstance(snapshot, ScheduleSnapshot)
        assert [d.revision for d in snapshot.definitions] == [1, 2]
        assert (snapshot.n, snapshot.state) == (2, await b.schedule_row(schedule.id))

    @on_store
    async def test_orphan_bodies_go_and_shared_ones_stay(self, b: StoreBench) -> None:
        texts = ("alone", "shared", "scheduled", "unended")
        await b.schedule(payload="scheduled")
        for text in texts[:3]:
            await b.enqueue(payload=text)
        for claim in (await b.claim()).claims:
            await b.end(claim.run)
        for text in ("shared", "unended"):
            await b.enqueue(payload=text)
        purged = await b.store.purge(PURGE_ALL, 100, now=T0)
        assert (purged.runs, purged.bodies) == (3, 1)
        found = await b.store.find(Bodies(ids=tuple(make_body(text).id for text in texts)))
        assert {body.data for body in found} == {"shared", "scheduled", "unended"}
        running: list[Run] = [claim.run for claim in (await b.claim()).claims]
        for run in running:
            await b.end(run)
        purged = await b.store.purge(PURGE_ALL, 100, now=T0)
        assert (purged.runs, purged.bodies) == (2, 2)
        assert await b.store.find(Runs()) == []

    @on_store
    async def test_a_deleted_schedule_goes_when_nothing_else_of_it_is_left(self, b: StoreBench) -> None:
        schedule = await b.schedule(payload="mine")
        await b.accept(plan_change(b.ids, schedule, [T0 + 1_000], state=State.SKIPPED), now=T0 + 1_000)
        row = await b.schedule_row(schedule.id)
        gate = Gate(f"schedule:{schedule.id}", 1)
        deletion = schedule_change(b.ids, row, ScheduleDeleted(schedule_id=row.id), state="deleted")
        await b.accept(replace(deletion, gates=(gate,), touches=(row.id,)))  # the touch is never cleared
        young = Retention(ended_before=T0)
        assert await b.store.purge(young, 100, now=T0 + 5_000) == Purged()
        assert (await b.store.purge(PURGE_ALL, 100, now=T0 + 6_000)).runs == 1
        purged = await b.store.purge(PURGE_ALL, 100, now=T0 + 7_000)
        assert (purged.runs, purged.schedules, purged.bodies) == (0, 1, 1)
        assert await b.store.find(Schedules(states=("deleted",))) == []
        assert (await b.store.due(Agenda.TOUCHED, 9, hold=0, now=T0 + 7_000)).schedules == ()
        assert await b.store.find(Gates()) == []
        assert await b.names() == ["LogCompacted", "LogCompacted"]
        assert await b.store.find(Tallies()) == [Tally(None, T0 // DAY_MS, "fire/skipped", 1)]
        assert await b.store.purge(PURGE_ALL, 100, now=T0 + 8_000) == Purged(notes=1)
        assert await b.store.purge(PURGE_ALL, 100, now=T0 + 9_000) == Purged()

    @on_store
    async def test_live_and_finished_schedules_stay(self, b: StoreBench) -> None:
        await b.schedule()
        finished = await b.schedule()
        over = ScheduleFinished(schedule_id=finished.id, reason="ended", cursor=T0)
        await b.accept(schedule_change(b.ids, finished, over, state="finished", next_at=None))
        assert await b.store.purge(PURGE_ALL, 100, now=T0 + 9_000) == Purged()

    @on_store
    async def test_old_notes_go_and_the_last_compaction_event_stays(self, b: StoreBench) -> None:
        for number in range(5):
            note = InstanceJoined(instance=f"i{number}")
            await b.accept(Change(id=b.ids.change(), events=(note,)), now=T0 + number)
        purged = await b.store.purge(Retention(ended_before=T0 + 2), 100, now=T0 + 10)
        assert (purged.notes, purged.events, purged.more) == (2, 0, False)
        assert await b.names() == ["InstanceJoined"] * 3
        assert (await b.store.purge(PURGE_ALL, 2, now=T0 + 10)).more
        assert (await b.store.purge(PURGE_ALL, 2, now=T0 + 10)).notes == 1
        for number in range(2):
            await b.accept(enqueue_change(b.ids, make_run(b.ids, state=State.SKIPPED)), now=T0 + 11)
            assert (await b.store.purge(PURGE_ALL, 100, now=T0 + 20 + number)).notes == 0
        assert (await b.store.purge(PURGE_ALL, 100, now=T0 + 30)).notes == 1
        assert await b.names() == ["LogCompacted"]
        assert await b.store.purge(PURGE_ALL, 100, now=T0 + 40) == Purged()

    @on_store
    async def test_ended_leases_are_purged_by_prefix_and_age(self, b: StoreBench) -> None:
        for name in ("instance:a", "instance:b", "keeper"):
            await b.store.lease(name, "w", 1_000, now=T0)
        held = await b.store.lease("instance:c", "w", 1_000_000, now=T0)
        assert held is not None
        await b.store.release("instance:b", "w", 1, now=T0)
        policy = Retention(ended_before=0, lease_prefix="instance:", leases_before=T0 + 1)
        assert await b.store.purge(Retention(ended_before=0, lease_prefix="instance:"), 9, now=T0 + 5_000) == Purged()
        assert (await b.store.purge(policy, 9, now=T0 + 500)).leases == 1
        assert (await b.store.purge(policy, 9, now=T0 + 5_000)).leases == 1
        assert {lease.name for lease in await b.store.find(Leases())} == {"instance:c", "keeper"}
