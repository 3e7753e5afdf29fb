"""Tests of `restore`, which writes one page of another store's rows and events into the store under test.

If the log of the store under test does not end with the event number `page.after`, at which the page continues the log,
nothing is written.
"""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.model.events import (
    FiresElided,
    InstanceJoined,
    RunScheduled,
    RunStarted,
    ScheduleCreated,
)
from mainspring.model.gate import Gate
from mainspring.model.lease import Lease
from mainspring.model.retention import Tally
from mainspring.model.run import Run, State
from mainspring.model.schedule import Span
from mainspring.ports.store import Agenda, Bodies, Gates, Leases, Page, Runs, Schedules, Spans, Tallies
from mainspring.testing.contract.bench import ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import T0, make_body, make_run, make_schedule, make_spec


def birth(run: Run, seq: int) -> RunScheduled:
    """Return the first event of a run, as the log of another store contains it under the number `seq`."""
    return RunScheduled(
        seq=seq, at=T0 - 50, n=1, change="theirs", run_id=run.id, schedule_id=run.schedule_id, task="t", due_at=T0
    )


class Restores(ContractBase):
    """Tests of `restore`."""

    @on_store
    async def test_restored_events_keep_their_numbers_and_the_log_continues_after_them(self, b: StoreBench) -> None:
        run = make_run(b.ids, state=State.RUNNING, n=2, epoch=1, attempt=1, owner="w0", lease_until=0, created_at=T0)
        events = (
            birth(run, 7),
            InstanceJoined(seq=9, at=T0 - 40, instance="w0", actor="me"),
            RunStarted(seq=12, at=T0 - 30, n=2, run_id=run.id, epoch=1, attempt=1, owner="w0"),
        )
        assert await b.store.restore(Page(after=0, events=events, runs=(run,)))
        assert await b.store.tail(0, 99) == list(events)
        assert await b.events(run_id=run.id) == [events[0], events[2]]
        assert await b.run(run.id) == run
        await b.enqueue()
        assert (await b.events())[-1].seq > 12

    @on_store
    async def test_a_page_for_another_place_in_the_log_writes_nothing(self, b: StoreBench) -> None:
        run, other = make_run(b.ids), make_run(b.ids)
        assert not await b.store.restore(Page(after=3, events=(birth(run, 4),), runs=(run,)))
        assert (await b.events(), await b.runs()) == ([], [])
        assert await b.store.restore(Page(after=0, events=(birth(run, 4),), runs=(run,)))
        again = Page(after=0, events=(birth(other, 5),), runs=(other,), gates=(Gate("g", 1),))
        assert not await b.store.restore(again)
        assert [found.id for found in await b.runs()] == [run.id]
        assert await b.store.find(Gates()) == []
        assert await b.store.restore(replace(again, after=4))
        assert [event.seq for event in await b.events()] == [4, 5]

    @on_store
    async def test_an_event_keeps_the_id_of_a_run_without_a_row(self, b: StoreBench) -> None:
        note = InstanceJoined(seq=3, at=T0, run_id=b.ids.next(), instance="w")
        assert await b.store.restore(Page(after=0, events=(note,)))
        assert await b.events(run_id=note.run_id) == [note]
        assert await b.store.tail(0, 9) == [note]

    @on_store
    async def test_restored_rows_replace_existing_rows(self, b: StoreBench) -> None:
        run = make_run(b.ids, priority=1, gates=("g",), unique_key="u", progress="half", body=make_body("1").id)
        schedule = make_schedule(b.ids, spec=make_spec(gates=("g",)), n=3, fired=2, created_at=T0, updated_at=T0 + 1)
        first = Page(
            after=0,
            runs=(run,),
            schedules=(schedule,),
            touched={schedule.id: 2},
            bodies=(make_body("1"),),
            gates=(Gate("g", 1, 1, T0),),
            tallies=(Tally(None, 3, "adhoc/succeeded", 5), Tally(schedule.id, 3, "fire/failed", 1)),
        )
        assert await b.store.restore(first)
        assert await b.run(run.id) == run
        assert await b.schedule_row(schedule.id) == schedule
        (due,) = (await b.store.due(Agenda.TOUCHED, 9, hold=0, now=T0)).schedules
        assert (due.schedule, due.touched, due.open) == (schedule, 2, 0)
        assert await b.store.find(Tallies()) == list(first.tallies)
        assert await b.store.find(Bodies(ids=(make_body("1").id,))) == [make_body("1")]
        ended = replace(run, state=State.CANCELLED, n=2, ended_at=T0 + 5, reason="asked", progress=None)
        paused = replace(schedule, state="paused", n=4, reason="test", next_at=None)
        gate = Gate("g", 2, 0, 0)
        tallies = (Tally(None, 3, "adhoc/succeeded", 6),)
        page = Page(after=0, runs=(ended,), schedules=(paused,), gates=(gate,), tallies=tallies, bodies=first.bodies)
        assert await b.store.restore(page)
        assert await b.runs() == [ended]
        assert await b.store.find(Schedules()) == [paused]
        assert (await b.store.due(Agenda.TOUCHED, 9, hold=0, now=T0)).schedules == ()
        assert await b.store.find(Gates()) == [gate]
        assert await b.store.find(Tallies()) == [*tallies, first.tallies[1]]

    @on_store
    async def test_a_restored_lease_keeps_its_epoch_and_the_time_that_it_has_left(self, b: StoreBench) -> None:
        held = Lease("lock:a", "i1", 7, 0, T0, "text", left=60_000)
        ended = Lease("lock:b", "i2", 3, 0, T0, None, live=False)
        assert await b.store.lease("lock:b", "other", 60_000) is not None
        assert await b.store.restore(Page(after=0, leases=(held, ended)))
        first, second = await b.store.find(Leases(prefix="lock:"))
        assert (first.name, first.owner, first.epoch, first.renewed_at, first.data) == ("lock:a", "i1", 7, T0, "text")
        assert first.live
        assert 0 < first.left <= 60_000
        assert (second.owner, second.epoch, second.data, second.live, second.left) == ("i2", 3, None, False, 0)
        assert await b.store.lease("lock:a", "i3", 60_000) is None
        renewed = await b.store.lease("lock:a", "i1", 60_000, epoch=7)
        assert renewed is not None
        taken = await b.store.lease("lock:b", "i3", 60_000)
        assert taken is not None
        assert taken.epoch == 4

    @on_store
    async def test_spans_come_with_their_event(self, b: StoreBench) -> None:
        schedule = make_schedule(b.ids)
        span = Span(schedule.id, 1, T0, T0 + 5_000, 5, "paused")
        created = ScheduleCreated(
            seq=1,
            at=T0,
            n=1,
            schedule_id=schedule.id,
            name=schedule.name,
            spec=schedule.spec,
            anchor=T0,
            cursor=T0,
            next_at=T0 + 1_000,
        )
        elided = FiresElided(
            seq=2,
            at=T0,
            n=2,
            schedule_id=schedule.id,
            revision=1,
            after=T0,
            through=T0 + 5_000,
            count=5,
            reason="paused",
        )
        page = Page(after=0, events=(created, elided), schedules=(schedule,), spans=(span, span))
        assert await b.store.restore(page)
        assert await b.store.find(Spans()) == [span, span]
        assert await b.events(schedule_id=schedule.id) == [created, elided]

    @on_store
    async def test_a_restored_run_is_claimed_and_one_that_ran_is_rescued(self, b: StoreBench) -> None:
        waiting = make_run(b.ids)
        running = make_run(b.ids, state=State.RUNNING, n=2, epoch=1, attempt=1, owner="w0", lease_until=0)
        parked = make_run(b.ids, gates=("g",), parked_on="g")
        events = tuple(birth(run, seq) for seq, run in enumerate((waiting, running, parked), 1))
        runs = (waiting, running, parked)
        assert await b.store.restore(Page(after=0, events=events, runs=runs, gates=(Gate("g", 1),)))
        assert (await b.store.due(Agenda.EXPIRED, 9, now=T0)).runs == (running,)
        claimed = (await b.claim(T0)).claims
        assert [claim.run.id for claim in claimed] == [waiting.id]
        assert (await b.store.due(Agenda.GATES, 9, now=T0)).unparked == 1
        assert (await b.start(T0)).id == parked.id

    @on_store
    async def test_a_unique_key_moves_to_another_run_within_one_page(self, b: StoreBench) -> None:
        """In one page the run that has the key now comes before the run that had it and has ended."""
        new = make_run(b.ids, unique_key="u")
        old = make_run(b.ids, unique_key="u")
        assert await b.store.restore(Page(after=0, events=(birth(old, 1),), runs=(old,)))
        ended = replace(old, state=State.SUCCEEDED, ended_at=T0)
        assert await b.store.restore(Page(after=1, events=(birth(new, 2),), runs=(new, ended)))
        assert [run.id for run in await b.store.find(Runs(unique_key="u", states=(State.WAITING,)))] == [new.id]
