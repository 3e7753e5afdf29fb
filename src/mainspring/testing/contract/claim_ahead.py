"""The contract of claims ahead of time: a run due soon is claimed now, but starts at its own time."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.model.events import RunHandedBack, RunStarted
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.model.run import State
from mainspring.ports.store import Agenda, Claimed, ClaimRequest, Offer
from mainspring.testing.contract.bench import DEFAULT_LANE, ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import T0, enqueue_change, finish_change, fire_run, move_change, plan_change

CLAIM_AHEAD_MS = 200
AHEAD_OFFER = Offer("w9", (DEFAULT_LANE,), ("t",), 10_000, CLAIM_AHEAD_MS)


async def claim(b: StoreBench, now: Ms, limit: int = 10) -> Claimed:
    """Claim runs due up to 200 ms after `now`."""
    return await b.store.claim(AHEAD_OFFER, limit, now=now)


class ClaimsAhead(ContractBase):
    """Tests of `claim` with an offer whose `ahead` is not zero."""

    @on_store
    async def test_a_run_due_soon_is_claimed_now_and_starts_at_its_time(self, b: StoreBench) -> None:
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
    async def test_runs_are_claimed_ahead_only_on_request(self, b: StoreBench) -> None:
        await b.enqueue(due_at=T0 + 1)
        assert (await b.claim(T0)).claims == []
        assert len((await claim(b, T0)).claims) == 1

    @on_store
    async def test_more_urgent_runs_are_claimed_first_up_to_the_limit(self, b: StoreBench) -> None:
        low = await b.enqueue(due_at=T0, priority=3)
        soon = await b.enqueue(due_at=T0 + 10, priority=0)
        assert [c.run.id for c in (await claim(b, T0, limit=1)).claims] == [soon.id]
        assert [c.run.id for c in (await claim(b, T0, limit=1)).claims] == [low.id]

    @on_store
    async def test_a_run_claimed_ahead_holds_its_schedules_gate_at_once(self, b: StoreBench) -> None:
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
    async def test_a_run_with_a_shared_gate_is_not_claimed_ahead(self, b: StoreBench) -> None:
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
    async def test_a_gated_run_without_a_schedule_is_not_claimed_ahead(self, b: StoreBench) -> None:
        run = await b.enqueue(made=[Gate("task:ns/t", 1)], gates=("task:ns/t",), due_at=T0 + 100)
        claimed = await claim(b, T0)
        assert (claimed.claims, claimed.next_at) == ([], T0 + 100)
        assert [c.run.id for c in (await claim(b, T0 + 100)).claims] == [run.id]

    @on_store
    async def test_a_run_is_not_claimed_ahead_through_a_full_gate(self, b: StoreBench) -> None:
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
    async def test_a_run_that_crashed_before_is_not_claimed_ahead(self, b: StoreBench) -> None:
        run = await b.enqueue(ready_at=T0 + 100, crashes=1)
        claimed = await claim(b, T0)
        assert (claimed.claims, claimed.next_at) == ([], T0 + 100)
        assert [c.run.id for c in (await claim(b, T0 + 100)).claims] == [run.id]

    @on_store
    async def test_a_claim_in_a_commit_takes_planned_runs_ahead(self, b: StoreBench) -> None:
        before = await b.enqueue()
        running = await b.start(T0, owner="w9")
        schedules = [await b.schedule(next_at=T0 + 100) for _ in range(3)]
        plans = [plan_change(b.ids, schedule, [T0 + 100]) for schedule in schedules]
        changes = [finish_change(b.ids, running, State.SUCCEEDED), *plans]
        applied = await b.store.apply(changes, claim_request=ClaimRequest(AHEAD_OFFER, 10), now=T0 + 5)
        assert [result.status for result in applied.results] == ["accepted"] * 4
        assert applied.claimed is not None
        started = {c.run.id: c.run.started_at for c in applied.claimed.claims}
        assert started == {run.id: T0 + 100 for plan in plans for run in plan.runs}
        assert (await b.run(before.id)).state is State.SUCCEEDED
        assert {(await b.run(run_id)).started_at for run_id in started} == {T0 + 100}

    @on_store
    async def test_a_run_handed_back_before_its_time_waits_for_it(self, b: StoreBench) -> None:
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
