"""Tests of rewinds: the spans of a schedule that end at an instant or later are removed, by a change and by a copy."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.model.events import FireCountedAgain, ScheduleRewound
from mainspring.model.ids import first_id_at
from mainspring.model.schedule import Span
from mainspring.ports.store import Page, Runs, Schedules, Spans
from mainspring.testing.contract.bench import ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import T0, plan_change, schedule_change

MINUTE = 60_000


class Rewinds(ContractBase):
    """Tests of `Change.cut_spans`, `Page.cuts` and the column `rewound`."""

    @on_store
    async def test_a_rewind_removes_the_spans_that_end_then_or_later(self, b: StoreBench) -> None:
        schedule, other = await b.schedule(), await b.schedule(name="other")
        spans = [
            Span(schedule.id, 1, T0 + start * MINUTE, T0 + end * MINUTE, 1, "missed")
            for start, end in ((0, 1), (1, 2), (2, 4), (4, 6))
        ]
        theirs = Span(other.id, 1, T0, T0 + 9 * MINUTE, 9, "missed")
        planned = replace(plan_change(b.ids, schedule, [T0 + 6 * MINUTE]), spans=tuple(spans), kind="other")
        planned_too = replace(plan_change(b.ids, other, [T0 + 9 * MINUTE]), spans=(theirs,), kind="other")
        assert all(result.ok for result in await b.apply(planned, planned_too))
        row = await b.schedule_row(schedule.id)
        kept = (spans[1], replace(spans[2], through=T0 + 3 * MINUTE))
        event = ScheduleRewound(
            schedule_id=schedule.id,
            from_=row.cursor,
            to=T0 + 2 * MINUTE,
            taken_back=3,
            anchor=row.anchor,
            fired=0,
            kept=kept,
        )
        change = schedule_change(b.ids, row, event, cursor=event.to, fired=0, rewound=event.from_)
        (result,) = await b.apply(replace(change, spans=kept, cut_spans=event.to))
        assert result.ok
        assert await b.store.find(Spans(schedule_id=schedule.id)) == [spans[0], *kept]
        assert await b.store.find(Spans(schedule_id=other.id)) == [theirs]
        after = await b.schedule_row(schedule.id)
        assert (after.cursor, after.rewound) == (event.to, event.from_)
        (logged,) = [one for one in await b.events(schedule_id=schedule.id) if isinstance(one, ScheduleRewound)]
        assert (logged.from_, logged.to, logged.taken_back, logged.kept) == (row.cursor, event.to, 3, kept)

    @on_store
    async def test_spans_and_their_rewind_may_come_in_one_batch(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        span = Span(schedule.id, 1, T0, T0 + 5 * MINUTE, 5, "missed")
        first = replace(plan_change(b.ids, schedule, [T0 + 5 * MINUTE]), spans=(span,), kind="other")
        planned = first.schedule
        assert planned is not None
        event = ScheduleRewound(
            schedule_id=schedule.id, from_=planned.cursor, to=T0, taken_back=5, anchor=planned.anchor, fired=0
        )
        second = schedule_change(b.ids, planned, event, cursor=T0, rewound=planned.cursor)
        results = await b.apply(first, replace(second, cut_spans=T0))
        assert [result.ok for result in results] == [True, True]
        assert await b.store.find(Spans(schedule_id=schedule.id)) == []

    @on_store
    async def test_a_run_that_counts_again_moves_the_cursor_and_stays_one_run(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        fire = T0 + 5 * MINUTE
        await b.apply(plan_change(b.ids, schedule, [fire]))
        row = await b.schedule_row(schedule.id)
        event = ScheduleRewound(schedule_id=row.id, from_=row.cursor, to=T0, taken_back=0, anchor=row.anchor, fired=0)
        back = schedule_change(b.ids, row, event, cursor=T0, fired=0, rewound=row.cursor)
        await b.apply(replace(back, cut_spans=T0))
        row = await b.schedule_row(schedule.id)
        query = Runs(schedule_id=row.id, fired_since=T0, oldest_first=True, after=first_id_at(T0))
        assert [run.fire_time for run in await b.store.find(query)] == [fire]
        again = FireCountedAgain(schedule_id=row.id, fire_time=fire, next_at=fire + MINUTE)
        (result,) = await b.apply(schedule_change(b.ids, row, again, cursor=fire, fired=1, next_at=fire + MINUTE))
        assert result.ok
        after = await b.schedule_row(schedule.id)
        assert (after.cursor, after.fired, after.rewound) == (fire, 1, row.rewound)
        assert len(await b.runs()) == 1

    @on_store
    async def test_a_restored_page_cuts_spans_before_it_adds_its_own(self, b: StoreBench) -> None:
        early, late = (Span("s", 1, T0 + n, T0 + n + 5, 1, "missed") for n in (0, 10))
        theirs, kept = Span("t", 1, T0, T0 + 20, 1, "missed"), Span("s", 1, T0 + 10, T0 + 12, 1, "missed")
        assert await b.store.restore(Page(after=0, spans=(early, late, theirs)))
        assert await b.store.restore(Page(after=0, spans=(kept,), cuts=(("s", T0 + 12),)))
        assert await b.store.find(Spans()) == [early, kept, theirs]

    @on_store
    async def test_schedules_are_found_by_how_far_they_are_planned(self, b: StoreBench) -> None:
        near, far = await b.schedule(cursor=T0), await b.schedule(name="far", cursor=T0 + MINUTE)
        await b.schedule(name="gone", cursor=T0 + MINUTE, state="deleted")
        found = await b.store.find(Schedules(planned_after=T0))
        assert [row.id for row in found] == [far.id]
        assert {row.id for row in await b.store.find(Schedules(planned_after=T0 - 1))} == {near.id, far.id}
