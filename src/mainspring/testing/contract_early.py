"""The contract of claims ahead of time: what begins soon is given now, and is still not early."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.model.events import RunHandedBack, RunStarted
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.model.run import State
from mainspring.ports.store import Agenda, Claimed, Offer, Wish
from mainspring.testing.contract_base import LANE, Bench, ContractBase, on_store
from mainspring.testing.factories import T0, enqueue_change, finish_change, fire_run, move_change, plan_change

AHEAD = 200
OFFER = Offer("w9", (LANE,), ("t",), 10_000, AHEAD)


async def claim(b: Bench, now: Ms, limit: int = 10) -> Claimed:
    return await b.store.claim(OFFER, limit, now=now)


class ClaimsAhead(ContractBase):
    """`claim` with an offer that looks ahead."""

    @on_store
    async def test_what_begins_soon_is_given_now_and_starts_at_its_time(self, b: Bench) -> None:
        due = await b.enqueue(due_at=T0 + 50)
        soon = await b.enqueue(due_at=T0 + 250)
        later = await b.enqueue(due_at=T0 + 251)
        claimed = await claim(b, T0 + 50)
        assert (claimed.now, claimed.next_at) == (T0 + 50, T0 + 251)
        assert [c.run.id for c in claimed.claims] == [due.id, soon.id]
        first, second = (c.run for c in claimed.claims)
        assert (first.started_at, first.lease_until) == (T0 + 50, T0 + 10_050)
        assert second == replace(
            soon,
            state=State.RUNNING,
            n=2,
            epoch=1,
            attempt=1,
            owner="w9",
            lease_until=T0 + 10_050,
            started_at=T0 + 250,
        )
        assert await b.run(soon.id) == second
        assert (await b.run(later.id)).state is State.WAITING
        event = (await b.events(run_id=soon.id))[-1]
        assert isinstance(event, RunStarted)
        assert event.at == T0 + 250

    @on_store
    async def test_only_who_asks_gets_it(self, b: Bench) -> None:
        await b.enqueue(due_at=T0 + 1)
        assert (await b.claim(T0)).claims == []
        assert len((await claim(b, T0)).claims) == 1

    @on_store
    async def test_what_is_more_urgent_comes_first_and_the_limit_holds(self, b: Bench) -> None:
        low = await b.enqueue(due_at=T0, priority=3)
        soon = await b.enqueue(due_at=T0 + 10, priority=0)
        assert [c.run.id for c in (await claim(b, T0, limit=1)).claims] == [soon.id]
        assert [c.run.id for c in (await claim(b, T0, limit=1)).claims] == [low.id]

    @on_store
    async def test_a_schedules_own_gate_is_held_from_then_on(self, b: Bench) -> None:
        schedule = await b.schedule()
        name = f"schedule:{schedule.id}"
        run = fire_run(schedule, T0 + 100, gates=(name,))
        await b.accept(enqueue_change(b.ids, run, gates=[Gate(name, 1)]))
        (given,) = (await claim(b, T0)).claims
        assert (given.run.id, given.run.started_at) == (run.id, T0 + 100)
        assert (await b.gate(name)).held == 1
        await b.accept(finish_change(b.ids, given.run, State.SUCCEEDED), now=T0 + 101)
        assert (await b.gate(name)).held == 0

    @on_store
    async def test_a_gate_that_others_pass_is_not_held_ahead_of_time(self, b: Bench) -> None:
        schedule = await b.schedule()
        gates = (f"schedule:{schedule.id}", "task:ns/t")
        run = fire_run(schedule, T0 + 100, gates=gates)
        await b.accept(enqueue_change(b.ids, run, gates=[Gate(gates[0], 1), Gate(gates[1], 1)]))
        plain = await b.enqueue(due_at=T0 + 150)
        claimed = await claim(b, T0)
        assert [c.run.id for c in claimed.claims] == [plain.id]
        assert claimed.next_at == T0 + 100
        assert [(await b.gate(name)).held for name in gates] == [0, 0]
        assert [c.run.id for c in (await claim(b, T0 + 100)).claims] == [run.id]

    @on_store
    async def test_a_gate_of_a_run_without_a_schedule_keeps_its_time(self, b: Bench) -> None:
        run = await b.enqueue(made=[Gate("task:ns/t", 1)], gates=("task:ns/t",), due_at=T0 + 100)
        claimed = await claim(b, T0)
        assert (claimed.claims, claimed.next_at) == ([], T0 + 100)
        assert [c.run.id for c in (await claim(b, T0 + 100)).claims] == [run.id]

    @on_store
    async def test_a_full_gate_keeps_it_out(self, b: Bench) -> None:
        schedule = await b.schedule()
        name = f"schedule:{schedule.id}"
        runs = [fire_run(schedule, T0 + at, gates=(name,)) for at in (0, 100)]
        for run in runs:
            await b.accept(enqueue_change(b.ids, run, gates=[Gate(name, 1)]))
        assert [c.run.id for c in (await claim(b, T0)).claims] == [runs[0].id]
        assert (await b.run(runs[1].id)).state is State.WAITING
        assert (await claim(b, T0 + 100)).claims == []
        await b.end(await b.run(runs[0].id), now=T0 + 101)
        await b.store.due(Agenda.GATES, 10, now=T0 + 102)
        assert [c.run.id for c in (await claim(b, T0 + 102)).claims] == [runs[1].id]

    @on_store
    async def test_one_that_crashed_before_waits_for_its_time(self, b: Bench) -> None:
        run = await b.enqueue(ready_at=T0 + 100, crashes=1)
        claimed = await claim(b, T0)
        assert (claimed.claims, claimed.next_at) == ([], T0 + 100)
        assert [c.run.id for c in (await claim(b, T0 + 100)).claims] == [run.id]

    @on_store
    async def test_it_rides_along_with_the_plan_and_with_what_ended(self, b: Bench) -> None:
        before = await b.enqueue()
        running = await b.start(T0, owner="w9")
        schedules = [await b.schedule(next_at=T0 + 100) for _ in range(3)]
        plans = [plan_change(b.ids, schedule, [T0 + 100]) for schedule in schedules]
        changes = [finish_change(b.ids, running, State.SUCCEEDED), *plans]
        applied = await b.store.apply(changes, wish=Wish(OFFER, 10), now=T0 + 5)
        assert [result.status for result in applied.results] == ["accepted"] * 4
        assert applied.claimed is not None
        started = {c.run.id: c.run.started_at for c in applied.claimed.claims}
        assert started == {run.id: T0 + 100 for plan in plans for run in plan.runs}
        assert (await b.run(before.id)).state is State.SUCCEEDED
        assert {(await b.run(run_id)).started_at for run_id in started} == {T0 + 100}

    @on_store
    async def test_given_back_it_waits_for_its_time(self, b: Bench) -> None:
        await b.enqueue(due_at=T0 + 100)
        (given,) = (await claim(b, T0)).claims
        run = given.run
        back = RunHandedBack(
            ns=run.ns,
            run_id=run.id,
            schedule_id=run.schedule_id,
            epoch=run.epoch,
            attempt=run.attempt,
            owner=run.owner,
            reason="not_begun",
        )
        await b.accept(move_change(b.ids, run, back, state=State.WAITING), now=T0 + 10)
        claimed = await b.claim(T0 + 99)
        assert (claimed.claims, claimed.next_at) == ([], T0 + 100)
        assert (await b.start(T0 + 100)).id == run.id
