"""The contract of `apply` on existing runs: changes under a lease or an event number, and columns only a store sets."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.model.change import Change, RunAt, RunLease, ScheduleAbsent
from mainspring.model.events import (
    CancelRequested,
    RunCancelled,
    RunDiscarded,
    RunLate,
    RunReopened,
)
from mainspring.model.gate import Gate
from mainspring.model.run import Run, State
from mainspring.ports.store import Agenda, Runs
from mainspring.testing.contract.bench import ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import (
    T0,
    create_schedule_change,
    enqueue_change,
    finish_change,
    make_run,
    make_schedule,
    move_change,
    plan_change,
    with_kind,
)


class ApplyMoves(ContractBase):
    """Tests of the guards `RunLease` and `RunAt`."""

    @on_store
    async def test_finish_under_the_lease(self, b: StoreBench) -> None:
        await b.enqueue()
        running = await b.start(T0 + 1)
        change = finish_change(b.ids, running, result='{"ok":1}')
        (result,) = await b.apply(change, now=T0 + 8)
        assert (result.status, result.n) == ("accepted", 0)
        row = await b.run(running.id)
        assert row == replace(
            running,
            n=3,
            state=State.SUCCEEDED,
            began_at=T0 + 1,
            ms=5,
            result='{"ok":1}',
            ended_at=T0 + 8,
            owner=None,
            lease_until=None,
        )
        event = (await b.events(run_id=running.id))[-1]
        assert event == replace(change.events[0], seq=event.seq, at=T0 + 8, n=3, change=change.id)

    @on_store
    async def test_finish_repeated(self, b: StoreBench) -> None:
        await b.enqueue()
        change = finish_change(b.ids, await b.start(), State.RETRYING, ready_at=T0 + 1)
        await b.accept(change)
        assert [r.status for r in await b.apply(change)] == ["repeated"]
        await b.start(T0 + 2)
        assert [r.status for r in await b.apply(change)] == ["repeated"]
        assert (await b.names()).count("RunRetrying") == 1

    @on_store
    async def test_stale_epoch_refused(self, b: StoreBench) -> None:
        await b.enqueue(made=[Gate("g", 3)], gates=("g",))
        first = await b.start()
        await b.end(first, State.WAITING)
        second = await b.start(T0 + 5, owner="w2")
        (result,) = await b.apply(finish_change(b.ids, first), now=T0 + 6)
        assert (result.status, result.n, result.current) == ("refused", second.n, second)
        assert await b.run(first.id) == second
        assert (await b.gate("g")).held == 1

    @on_store
    async def test_lease_guard_needs_a_running_run(self, b: StoreBench) -> None:
        run = await b.enqueue()
        ghost = make_run(b.ids)
        results = await b.apply(
            Change(id=b.ids.change(), guard=RunLease(run.id, 0), run=run),
            Change(id=b.ids.change(), guard=RunLease(ghost.id, 0), run=ghost),
        )
        assert [(r.status, r.current) for r in results] == [("refused", run), ("refused", None)]
        ended = await b.end(await b.start())
        (result,) = await b.apply(finish_change(b.ids, replace(ended, owner="w1")))
        assert (result.status, result.current) == ("refused", ended)

    @on_store
    async def test_a_finish_after_the_lease_ended_is_accepted_until_a_rescue(self, b: StoreBench) -> None:
        await b.enqueue()
        running = await b.start(ttl=10)
        assert (await b.end(running, now=T0 + 1_000)).state is State.SUCCEEDED

    @on_store
    async def test_stale_n_refused(self, b: StoreBench) -> None:
        run = await b.enqueue()
        running = await b.start()
        change = move_change(
            b.ids, run, RunCancelled(run_id=run.id, reason="user"), state=State.CANCELLED, cancel="user"
        )
        (result,) = await b.apply(change)
        assert (result.status, result.n, result.current) == ("refused", 2, running)
        ghost = make_run(b.ids)
        (result,) = await b.apply(Change(id=b.ids.change(), guard=RunAt(ghost.id, 1), run=ghost))
        assert (result.status, result.current) == ("refused", None)

    @on_store
    async def test_move_under_n(self, b: StoreBench) -> None:
        run = await b.enqueue()
        cancelled = RunCancelled(run_id=run.id, reason="user", by="ann")
        change = move_change(b.ids, run, cancelled, state=State.CANCELLED, cancel="user", reason="user")
        (result,) = await b.apply(change, now=T0 + 3)
        assert (result.status, result.n) == ("accepted", 2)
        expected = replace(run, n=2, state=State.CANCELLED, cancel="user", reason="user", ended_at=T0 + 3)
        assert await b.run(run.id) == expected
        assert [r.status for r in await b.apply(change)] == ["repeated"]
        assert (await b.claim(T0 + 5)).claims == []

    @on_store
    async def test_a_cancel_request_survives_an_outcome_that_did_not_see_it(self, b: StoreBench) -> None:
        await b.enqueue()
        running = await b.start(T0)
        asked = CancelRequested(run_id=running.id, reason="user")
        await b.accept(move_change(b.ids, running, asked, cancel="user"))
        row = await b.run(running.id)
        assert row == replace(running, n=3, cancel="user")
        # The worker has not seen the request: its row lacks it, and the store must keep it.
        ended = await b.end(running, State.RETRYING, ready_at=T0 + 50)
        assert (ended.cancel, ended.state, ended.n) == ("user", State.RETRYING, 4)

    @on_store
    async def test_leaving_running_clears_owner_lease_and_progress(self, b: StoreBench) -> None:
        for state in (State.WAITING, State.RETRYING, State.FAILED, State.CANCELLED, State.LOST, State.SKIPPED):
            await b.enqueue()
            running = await b.start()
            assert await b.store.progress(running.id, running.epoch, "half")
            row = await b.end(running, state, ready_at=T0 + 99_999, now=T0 + 1)
            assert (row.state, row.owner, row.lease_until, row.parked_on, row.progress) == (state, *[None] * 4)
            assert row.ended_at == (None if state in (State.WAITING, State.RETRYING) else T0 + 1)
            assert (row.epoch, row.attempt, row.started_at) == (1, 1, T0)

    @on_store
    async def test_moving_a_parked_run_unparks_it(self, b: StoreBench) -> None:
        run = await b.enqueue(made=[Gate("g", 0)], gates=("g",))
        assert (await b.claim()).claims == []
        row = await b.run(run.id)
        assert row == replace(run, parked_on="g")
        await b.accept(move_change(b.ids, row, RunCancelled(run_id=run.id, reason="x"), state=State.CANCELLED))
        assert (await b.run(run.id)).parked_on is None
        assert (await b.store.due(Agenda.GATES, 10, now=T0)).unparked == 0

    @on_store
    async def test_a_change_cannot_set_the_columns_of_the_store(self, b: StoreBench) -> None:
        run = await b.enqueue(now=T0 + 1)
        lies = replace(run, epoch=7, attempt=7, n=70, created_at=5, owner="x", ended_at=9, task="other")
        running = replace(await b.start(T0 + 2), n=2)
        await b.accept(
            Change(
                id=b.ids.change(),
                guard=RunLease(run.id, 1),
                run=replace(lies, state=State.WAITING, ready_at=T0 + 9, failures=1, crashes=2),
                events=finish_change(b.ids, running, State.WAITING).events,
            ),
            now=T0 + 3,
        )
        row = await b.run(run.id)
        assert row == replace(run, n=3, epoch=1, attempt=1, started_at=T0 + 2, ready_at=T0 + 9, failures=1, crashes=2)

    @on_store
    async def test_reopen_and_discard(self, b: StoreBench) -> None:
        await b.enqueue()
        dead = await b.end(await b.start(), State.FAILED, now=T0 + 1)
        assert (dead.dead, dead.ended_at, dead.failures, dead.error) == (True, T0 + 1, 1, "ValueError: no")
        reopened = RunReopened(run_id=dead.id, ready_at=T0 + 5)
        fresh = {"state": State.WAITING, "dead": False, "failures": 0, "error": None, "reason": None}
        change = move_change(b.ids, dead, reopened, ready_at=T0 + 5, **fresh)
        await b.accept(change, now=T0 + 4)
        row = await b.run(dead.id)
        assert (row.state, row.ended_at, row.dead, row.attempt, row.n) == (State.WAITING, None, False, 1, 4)
        dead = await b.end(await b.start(T0 + 5), State.FAILED, now=T0 + 6)
        assert (dead.attempt, dead.epoch) == (2, 2)
        await b.accept(move_change(b.ids, dead, RunDiscarded(run_id=dead.id), dead=False), now=T0 + 9)
        row = await b.run(dead.id)
        assert (row.dead, row.ended_at, row.state) == (False, T0 + 6, State.FAILED)

    @on_store
    async def test_reopen_refused_while_another_has_the_key(self, b: StoreBench) -> None:
        await b.enqueue(unique_key="k")
        dead = await b.end(await b.start(), State.FAILED)
        other = await b.enqueue(unique_key="k", due_at=T0 + 60_000)
        reopened = RunReopened(run_id=dead.id, ready_at=T0)
        (result,) = await b.apply(move_change(b.ids, dead, reopened, state=State.WAITING, dead=False))
        assert (result.status, result.current) == ("refused", dead)
        cancelled = RunCancelled(run_id=other.id, reason="x")
        await b.accept(move_change(b.ids, other, cancelled, state=State.CANCELLED))
        await b.accept(move_change(b.ids, dead, reopened, state=State.WAITING, dead=False))
        (result,) = await b.apply(enqueue_change(b.ids, make_run(b.ids, unique_key="k")))
        assert isinstance(result.current, Run)
        assert (result.status, result.current.id) == ("refused", dead.id)

    @on_store
    async def test_events_are_numbered_per_stream_and_notes_are_not(self, b: StoreBench) -> None:
        first, second = await b.enqueue(), await b.enqueue()
        running = [claim.run for claim in (await b.claim(T0 + 1)).claims]
        late = [RunLate(run_id=run.id, late_ms=9) for run in running]
        changes = [finish_change(b.ids, run) for run in running]
        noted = [replace(c, events=(note, *c.events)) for c, note in zip(changes, late, strict=True)]
        await b.accept(*map(with_kind, noted), now=T0 + 2)
        for run in (first, second):
            events = await b.events(run_id=run.id)
            assert [(type(e).__name__, e.n, e.at) for e in events] == [
                ("RunScheduled", 1, T0),
                ("RunStarted", 2, T0 + 1),
                ("RunLate", None, T0 + 2),
                ("RunSucceeded", 3, T0 + 2),
            ]
            assert (await b.run(run.id)).n == 3
        seqs = [event.seq for event in await b.events()]
        assert seqs == sorted(set(seqs))

    @on_store
    async def test_changes_of_a_mixed_batch_are_accepted_one_by_one(self, b: StoreBench) -> None:
        schedule = await b.schedule()
        await b.enqueue()
        running = await b.start()
        new = make_run(b.ids)
        results = await b.apply(
            finish_change(b.ids, running),
            finish_change(b.ids, replace(make_run(b.ids), epoch=1)),
            plan_change(b.ids, schedule, [T0 + 1_000]),
            create_schedule_change(b.ids, make_schedule(b.ids, name=schedule.name)),
            enqueue_change(b.ids, new),
            now=T0 + 1,
        )
        assert [r.status for r in results] == ["accepted", "refused", "accepted", "refused", "accepted"]
        assert [(r.id, r.state) for r in await b.store.find(Runs(ids=(running.id, new.id), oldest_first=True))] == [
            (running.id, State.SUCCEEDED),
            (new.id, State.WAITING),
        ]
        assert len(await b.runs()) == 3

    @on_store
    async def test_releases(self, b: StoreBench) -> None:
        for _ in range(2):
            await b.enqueue(made=[Gate("g", 2), Gate("h", 2)], gates=("g", "h"))
        one, two = (claim.run for claim in (await b.claim()).claims)
        assert [(await b.gate(name)).held for name in "gh"] == [2, 2]
        await b.end(one)
        assert [(await b.gate(name)).held for name in "gh"] == [1, 1]
        change = finish_change(b.ids, two)
        await b.accept(replace(change, releases=("g", "h", "h", "nobody made")))
        assert [(await b.gate(name)).held for name in "gh"] == [0, 0]
        assert await b.apply(change) != []
        assert [(await b.gate(name)).held for name in "gh"] == [0, 0]

    @on_store
    async def test_schedule_absent_is_refused_by_id_alone(self, b: StoreBench) -> None:
        row = await b.schedule()
        guard = ScheduleAbsent(row.id, "elsewhere", "unheard of")
        (result,) = await b.apply(Change(id=b.ids.change(), guard=guard, schedule=row))
        assert (result.status, result.current) == ("refused", row)
