"""The contract of `due`, of named leases and of `wait`."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from mainspring.model.events import LeaseExpired, ScheduleDeleted, ScheduleFinished, SchedulePaused
from mainspring.model.run import State
from mainspring.ports.store import Agenda, Leases
from mainspring.testing.contract.bench import ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import (
    T0,
    create_schedule_change,
    finish_change,
    make_run,
    make_schedule,
    move_change,
    plan_change,
    schedule_change,
)


class DueSchedules(ContractBase):
    """Tests of `due` for schedules whose time has come and for touched schedules."""

    @on_store
    async def test_due_by_next_at(self, b: StoreBench) -> None:
        late = await b.schedule(next_at=T0 + 30)
        early = await b.schedule(next_at=T0 + 10)
        future = await b.schedule(next_at=T0 + 500)
        await b.schedule(next_at=None)
        due = await b.store.due(Agenda.SCHEDULES, 10, hold=60_000, now=T0 + 30)
        assert due.now == T0 + 30
        assert [row.schedule for row in due.schedules] == [early, late]
        assert due.next_at == future.next_at
        assert (due.runs, due.unparked) == ((), 0)

    @on_store
    async def test_nothing_is_due_before_its_time(self, b: StoreBench) -> None:
        assert (await b.store.due(Agenda.SCHEDULES, 10, now=T0)).next_at is None
        await b.schedule(next_at=T0 + 10)
        due = await b.store.due(Agenda.SCHEDULES, 10, now=T0 + 9)
        assert (due.schedules, due.next_at) == ((), T0 + 10)

    @on_store
    async def test_due_limit(self, b: StoreBench) -> None:
        rows = [await b.schedule(next_at=T0 + i) for i in range(5)]
        first = await b.store.due(Agenda.SCHEDULES, 2, now=T0 + 9)
        assert [row.schedule.id for row in first.schedules] == [rows[0].id, rows[1].id]
        assert first.next_at is not None
        assert first.next_at <= T0 + 9

    @on_store
    async def test_a_hold_hides_rows_until_it_ends(self, b: StoreBench) -> None:
        rows = [await b.schedule(next_at=T0 + i) for i in range(3)]
        await b.store.due(Agenda.SCHEDULES, 2, hold=1_000, now=T0 + 9)
        second = await b.store.due(Agenda.SCHEDULES, 2, hold=1_000, now=T0 + 9)
        assert [row.schedule.id for row in second.schedules] == [rows[2].id]
        later = await b.store.due(Agenda.SCHEDULES, 9, hold=1_000, now=T0 + 2_000)
        assert [row.schedule.id for row in later.schedules] == [row.id for row in rows]

    @on_store
    async def test_schedules_due_soon_are_returned_on_request_and_held_until_their_time(self, b: StoreBench) -> None:
        due, soon, later = [await b.schedule(next_at=T0 + at) for at in (10, 300, 500)]
        early = await b.store.due(Agenda.SCHEDULES, 9, hold=1_000, ahead=400, now=T0 + 10)
        assert [row.schedule.id for row in early.schedules] == [due.id, soon.id]
        assert (early.now, early.next_at) == (T0 + 10, later.next_at)
        again = await b.store.due(Agenda.SCHEDULES, 9, hold=1_000, ahead=400, now=T0 + 299)
        assert [row.schedule.id for row in again.schedules] == [later.id]
        assert again.next_at == soon.next_at
        in_time = await b.store.due(Agenda.SCHEDULES, 9, hold=1_000, now=T0 + 300)
        assert [row.schedule.id for row in in_time.schedules] == [soon.id]

    @on_store
    async def test_a_fire_planned_early_is_claimed_at_its_time(self, b: StoreBench) -> None:
        schedule = await b.schedule(next_at=T0 + 300)
        await b.store.due(Agenda.SCHEDULES, 9, ahead=400, now=T0)
        await b.accept(plan_change(b.ids, schedule, [T0 + 300], next_at=T0 + 900), now=T0)
        early = await b.claim(T0 + 299)
        assert (early.claims, early.next_at) == ([], T0 + 300)
        assert len((await b.claim(T0 + 300)).claims) == 1
        assert (await b.store.due(Agenda.SCHEDULES, 9, now=T0 + 600)).next_at == T0 + 900

    @on_store
    async def test_apply_ends_the_hold(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        assert len((await b.store.due(Agenda.SCHEDULES, 9, hold=60_000, now=T0 + 1_000)).schedules) == 1
        await b.accept(plan_change(b.ids, schedule, [T0 + 1_000], next_at=T0 + 2_000), now=T0 + 1_000)
        (row,) = (await b.store.due(Agenda.SCHEDULES, 9, hold=60_000, now=T0 + 2_000)).schedules
        assert row.schedule == await b.schedule_row(schedule.id)

    @on_store
    async def test_a_hold_prevents_no_change(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        await b.store.due(Agenda.SCHEDULES, 9, hold=60_000, now=T0 + 1_000)
        await b.accept(plan_change(b.ids, schedule, [T0 + 1_000]))

    @on_store
    async def test_states_that_are_due(self, b: StoreBench) -> None:
        paused, finished, deleted, rest = [await b.schedule(next_at=T0 + i) for i in range(4)]
        end = ScheduleFinished(schedule_id=finished.id, reason="x", cursor=finished.cursor)
        await b.accept(
            schedule_change(
                b.ids, paused, SchedulePaused(schedule_id=paused.id, reason="x", until=T0 + 5), state="paused"
            ),
            schedule_change(b.ids, finished, end, state="finished"),
            schedule_change(b.ids, deleted, ScheduleDeleted(schedule_id=deleted.id), state="deleted"),
            schedule_change(b.ids, rest, SchedulePaused(schedule_id=rest.id, reason="x"), state="paused", next_at=None),
        )
        due = await b.store.due(Agenda.SCHEDULES, 9, now=T0 + 60_000)
        assert [row.schedule.id for row in due.schedules] == [paused.id]

    @on_store
    async def test_a_moved_schedule_is_due_at_its_new_time_only(self, b: StoreBench) -> None:
        schedule = await b.schedule(next_at=T0 + 10)
        await b.accept(schedule_change(b.ids, schedule, next_at=T0 + 50))
        due = await b.store.due(Agenda.SCHEDULES, 9, now=T0 + 20)
        assert (due.schedules, due.next_at) == ((), T0 + 50)
        assert len((await b.store.due(Agenda.SCHEDULES, 9, now=T0 + 50)).schedules) == 1

    @on_store
    async def test_a_due_schedule_comes_with_its_open_runs(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        await b.accept(plan_change(b.ids, schedule, [T0 + i * 1_000 for i in range(1, 6)]))
        fires = await b.runs(schedule_id=schedule.id)
        first, second = (claim.run for claim in (await b.claim(T0 + 2_000)).claims)
        await b.end(first)
        (row,) = (await b.store.due(Agenda.SCHEDULES, 9, now=T0 + 9_000)).schedules
        assert (row.open, row.waiting, row.touched) == (4, 3, 0)
        assert row.oldest == (second, fires[2])

    @on_store
    async def test_touches(self, b: StoreBench) -> None:
        one, two = await b.schedule(), await b.schedule()
        await b.schedule()
        await b.enqueue()
        change = finish_change(b.ids, await b.start(), touches=[one.id, two.id, b.ids.next()])
        await b.accept(change)
        due = await b.store.due(Agenda.TOUCHED, 9, hold=10, now=T0)
        assert {row.schedule.id: row.touched for row in due.schedules} == {one.id: 1, two.id: 1}
        await b.apply(change)
        due = await b.store.due(Agenda.TOUCHED, 9, hold=10, now=T0 + 100)
        assert {row.schedule.id: row.touched for row in due.schedules} == {one.id: 1, two.id: 1}

    @on_store
    async def test_touch_mark_is_cleared_only_when_unchanged(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        for _ in range(2):
            await b.enqueue()
        one, two = (claim.run for claim in (await b.claim()).claims)
        await b.accept(finish_change(b.ids, one, touches=[schedule.id]))
        (row,) = (await b.store.due(Agenda.TOUCHED, 9, hold=10, now=T0)).schedules
        await b.accept(finish_change(b.ids, two, touches=[schedule.id]))
        await b.accept(schedule_change(b.ids, row.schedule, cursor=T0 + 1, touched=row.touched))
        (again,) = (await b.store.due(Agenda.TOUCHED, 9, hold=10, now=T0 + 20)).schedules
        assert again.touched != row.touched
        await b.accept(schedule_change(b.ids, again.schedule, cursor=T0 + 2))
        assert len((await b.store.due(Agenda.TOUCHED, 9, hold=10, now=T0 + 40)).schedules) == 1
        schedule = await b.schedule_row(schedule.id)
        await b.accept(schedule_change(b.ids, schedule, cursor=T0 + 3, touched=again.touched))
        assert (await b.store.due(Agenda.TOUCHED, 9, hold=10, now=T0 + 60)).schedules == ()

    @on_store
    async def test_a_deletion_can_touch_its_schedule_until_its_runs_are_cancelled(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        gone = schedule_change(b.ids, schedule, ScheduleDeleted(schedule_id=schedule.id), state="deleted", next_at=None)
        await b.accept(replace(gone, touches=(schedule.id,)))
        for start in (T0, T0 + 100):  # it stays touched when a hold ends
            (row,) = (await b.store.due(Agenda.TOUCHED, 9, hold=10, now=start)).schedules
            assert (row.schedule.state, row.touched) == ("deleted", 1)
        await b.accept(schedule_change(b.ids, row.schedule, touched=row.touched))
        assert (await b.store.due(Agenda.TOUCHED, 9, hold=10, now=T0 + 200)).schedules == ()

    @on_store
    async def test_touched_limit_and_hold(self, b: StoreBench) -> None:
        rows = [await b.schedule() for _ in range(3)]
        await b.enqueue()
        await b.accept(finish_change(b.ids, await b.start(), touches=[row.id for row in rows]))
        first = await b.store.due(Agenda.TOUCHED, 2, hold=1_000, now=T0)
        second = await b.store.due(Agenda.TOUCHED, 2, hold=1_000, now=T0)
        assert (len(first.schedules), len(second.schedules)) == (2, 1)
        assert {row.schedule.id for row in (*first.schedules, *second.schedules)} == {row.id for row in rows}


class DueExpired(ContractBase):
    """Tests of `due` for runs whose lease has ended: only a rescue makes them claimable again."""

    @on_store
    async def test_only_after_the_lease_ended(self, b: StoreBench) -> None:
        await b.enqueue()
        running = await b.start(ttl=100)
        due = await b.store.due(Agenda.EXPIRED, 9, now=T0 + 99)
        assert (due.runs, due.next_at) == ((), T0 + 100)
        due = await b.store.due(Agenda.EXPIRED, 9, now=T0 + 100)
        assert (due.runs, due.schedules, due.now) == ((running,), (), T0 + 100)

    @on_store
    async def test_a_renewed_lease_is_not_expired(self, b: StoreBench) -> None:
        await b.enqueue()
        running = await b.start(ttl=100)
        await b.store.renew("w1", [(running.id, 1)], 1_000, now=T0 + 50)
        assert (await b.store.due(Agenda.EXPIRED, 9, now=T0 + 500)).runs == ()
        assert len((await b.store.due(Agenda.EXPIRED, 9, now=T0 + 1_050)).runs) == 1

    @on_store
    async def test_expired_limit_and_hold(self, b: StoreBench) -> None:
        for _ in range(3):
            await b.enqueue()
        running = {claim.run.id for claim in (await b.claim(ttl=10)).claims}
        first = await b.store.due(Agenda.EXPIRED, 2, hold=1_000, now=T0 + 10)
        second = await b.store.due(Agenda.EXPIRED, 2, hold=1_000, now=T0 + 10)
        assert (len(first.runs), len(second.runs)) == (2, 1)
        assert {run.id for run in (*first.runs, *second.runs)} == running
        assert len((await b.store.due(Agenda.EXPIRED, 9, now=T0 + 5_000)).runs) == 3

    @on_store
    async def test_rescue_and_claim_again(self, b: StoreBench) -> None:
        await b.enqueue()
        old = await b.start(ttl=10)
        (run,) = (await b.store.due(Agenda.EXPIRED, 9, now=T0 + 10)).runs
        expired = LeaseExpired(run_id=run.id, crashes=1, ready_at=T0 + 10)
        rescue = move_change(b.ids, run, expired, state=State.WAITING, crashes=1, ready_at=T0 + 10)
        await b.accept(rescue, now=T0 + 10)
        assert (await b.store.due(Agenda.EXPIRED, 9, now=T0 + 60_000)).runs == ()
        new = await b.start(T0 + 11, owner="w2")
        assert (new.epoch, new.attempt, new.crashes, new.owner) == (2, 2, 1, "w2")
        (stale,) = await b.apply(finish_change(b.ids, old))
        assert (stale.status, stale.current) == ("refused", new)
        assert (await b.end(new)).state is State.SUCCEEDED
        assert await b.names() == ["RunScheduled", "RunStarted", "LeaseExpired", "RunStarted", "RunSucceeded"]


class NamedLeases(ContractBase):
    """Tests of `lease`, `release`, `wait`, and of the store's clock."""

    @on_store
    async def test_take_and_refuse(self, b: StoreBench) -> None:
        lease = await b.store.lease("leader", "i1", 100, data="hi", now=T0)
        assert lease is not None
        assert (lease.name, lease.owner, lease.epoch, lease.data) == ("leader", "i1", 1, "hi")
        assert (lease.expires_at - lease.renewed_at, lease.live) == (100, True)
        assert await b.store.lease("leader", "i2", 100, now=T0 + 99) is None
        assert await b.store.lease("leader", "i1", 100, now=T0 + 99) is None
        other = await b.store.lease("other", "i2", 100, now=T0)
        assert other is not None

    @on_store
    async def test_renew_a_term(self, b: StoreBench) -> None:
        await b.store.lease("leader", "i1", 100, data="hi", now=T0)
        lease = await b.store.lease("leader", "i1", 100, epoch=1, now=T0 + 50)
        assert lease is not None
        assert (lease.epoch, lease.expires_at, lease.renewed_at, lease.data) == (1, T0 + 150, T0 + 50, "hi")
        lease = await b.store.lease("leader", "i1", 100, epoch=1, data="new", now=T0 + 60)
        assert lease is not None
        assert lease.data == "new"
        assert await b.store.lease("leader", "i2", 100, now=T0 + 140) is None

    @on_store
    async def test_a_wrong_term_is_refused(self, b: StoreBench) -> None:
        assert await b.store.lease("leader", "i1", 100, epoch=1, now=T0) is None
        await b.store.lease("leader", "i1", 100, now=T0)
        assert await b.store.lease("leader", "i1", 100, epoch=2, now=T0 + 1) is None
        assert await b.store.lease("leader", "i2", 100, epoch=1, now=T0 + 1) is None
        assert await b.store.lease("leader", "i1", 100, epoch=1, now=T0 + 100) is None

    @on_store
    async def test_an_ended_term_can_be_taken(self, b: StoreBench) -> None:
        await b.store.lease("leader", "i1", 100, now=T0)
        lease = await b.store.lease("leader", "i2", 100, now=T0 + 100)
        assert lease is not None
        assert (lease.owner, lease.epoch) == ("i2", 2)
        assert await b.store.lease("leader", "i1", 100, epoch=1, now=T0 + 101) is None

    @on_store
    async def test_release_frees_and_the_epoch_grows(self, b: StoreBench) -> None:
        await b.store.lease("leader", "i1", 10_000, now=T0)
        assert not await b.store.release("leader", "i1", 2, now=T0 + 1)
        assert not await b.store.release("leader", "i2", 1, now=T0 + 1)
        assert not await b.store.release("nobody", "i1", 1, now=T0 + 1)
        assert await b.store.release("leader", "i1", 1, now=T0 + 1)
        assert not await b.store.release("leader", "i1", 1, now=T0 + 1)
        assert await b.store.lease("leader", "i1", 100, epoch=1, now=T0 + 2) is None
        lease = await b.store.lease("leader", "i2", 100, now=T0 + 2)
        assert lease is not None
        assert (lease.owner, lease.epoch) == ("i2", 2)

    @on_store
    async def test_of_eight_concurrent_requests_one_takes_the_lease(self, b: StoreBench) -> None:
        answers = await asyncio.gather(*(b.store.lease("leader", f"i{i}", 100, now=T0) for i in range(8)))
        assert len([lease for lease in answers if lease is not None]) == 1

    @on_store
    async def test_find_leases(self, b: StoreBench) -> None:
        for name in ("instance/b", "instance/a", "leader"):
            await b.store.lease(name, "i1", 100, data=name, now=T0)
        await b.store.release("instance/a", "i1", 1, now=T0)
        found = await b.store.find(Leases(prefix="instance/"))
        assert [(lease.name, lease.data) for lease in found] == [
            ("instance/a", "instance/a"),
            ("instance/b", "instance/b"),
        ]
        assert not found[0].live
        assert len(await b.store.find(Leases())) == 3
        assert await b.store.find(Leases(prefix="inst%")) == []

    @on_store
    async def test_wait_is_woken_by_a_change(self, b: StoreBench) -> None:
        if b.store.capabilities.multi_process:
            return  # such stores report only changes of other processes: their own suites test that
        waiting = asyncio.create_task(b.store.wait(20.0))
        for _ in range(3):
            await asyncio.sleep(0)
        await b.schedule()
        assert await waiting

    @on_store
    async def test_wait_times_out(self, b: StoreBench) -> None:
        assert not await b.store.wait(0.01)

    @on_store
    async def test_capabilities_are_reported(self, b: StoreBench) -> None:
        assert b.store.capabilities.history > 0
        assert isinstance(b.store.capabilities.durable, bool)

    @on_store
    async def test_without_now_the_store_uses_its_own_clock(self, b: StoreBench) -> None:
        far = replace(make_schedule(b.ids), next_at=T0 * 10)
        past = make_schedule(b.ids, next_at=1_000)
        applied = await b.store.apply([create_schedule_change(b.ids, row) for row in (far, past)])
        due = await b.store.due(Agenda.SCHEDULES, 9)
        assert [row.schedule.id for row in due.schedules] == [past.id]
        assert applied.now <= due.now
        assert due.now - applied.now < 60_000
        run = make_run(b.ids)
        assert (await b.store.renew("w1", [(run.id, 1)], 5)).lost == {run.id}
