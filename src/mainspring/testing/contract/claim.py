"""The contract of `claim`, `renew` and `progress`: which worker gets a run, when, and for how long."""

from __future__ import annotations

import asyncio
from collections import Counter

from msgspec.structs import replace

from mainspring.model.events import CancelRequested, RunStarted
from mainspring.model.gate import Gate
from mainspring.model.run import State
from mainspring.ports.store import Agenda, ClaimRequest, Offer
from mainspring.testing.contract.bench import DEFAULT_LANE, ContractBase, StoreBench, on_store
from mainspring.testing.contract.factories import T0, enqueue_change, finish_change, fire_run, make_run, move_change


class Claims(ContractBase):
    """Tests of `claim` for runs without gates."""

    @on_store
    async def test_claim_sets_owner_epoch_attempt_and_lease(self, b: StoreBench) -> None:
        run = await b.enqueue(payload='{"x":1}')
        claimed = await b.claim(T0 + 3, owner="w9", ttl=500)
        assert claimed.now == T0 + 3
        (claim,) = claimed.claims
        assert claim.body == '{"x":1}'
        assert claim.run == replace(
            run,
            state=State.RUNNING,
            n=2,
            epoch=1,
            attempt=1,
            owner="w9",
            lease_until=T0 + 503,
            started_at=T0 + 3,
        )
        assert await b.run(run.id) == claim.run

    @on_store
    async def test_claim_writes_run_started(self, b: StoreBench) -> None:
        schedule = await b.schedule(ns="n")
        run = fire_run(schedule, T0)
        await b.accept(enqueue_change(b.ids, run))
        await b.claim(T0 + 3, owner="w9")
        event = (await b.events(run_id=run.id))[-1]
        assert event == RunStarted(
            seq=event.seq,
            at=T0 + 3,
            ns="n",
            run_id=run.id,
            schedule_id=schedule.id,
            n=2,
            epoch=1,
            attempt=1,
            owner="w9",
        )

    @on_store
    async def test_no_body_is_none(self, b: StoreBench) -> None:
        await b.enqueue()
        assert [claim.body for claim in (await b.claim()).claims] == [None]

    @on_store
    async def test_each_claim_increments_epoch_and_attempt(self, b: StoreBench) -> None:
        await b.enqueue()
        for count in (1, 2, 3):
            running = await b.start(T0 + count)
            assert (running.epoch, running.attempt, running.n) == (count, count, 2 * count)
            await b.end(running, State.RETRYING if count == 1 else State.WAITING, ready_at=T0)

    @on_store
    async def test_a_running_run_is_not_claimed_again(self, b: StoreBench) -> None:
        await b.enqueue()
        await b.start()
        assert (await b.claim(owner="w2")).claims == []

    @on_store
    async def test_lanes(self, b: StoreBench) -> None:
        one = await b.enqueue(lane="n/one")
        two = await b.enqueue(lane="n/two")
        await b.enqueue(lane="n/three")
        assert (await b.claim(lanes=())).claims == []
        assert (await b.claim(lanes=("n/one2", "n"))).claims == []
        claims = (await b.claim(lanes=("n/two", "n/one"))).claims
        assert [claim.run.id for claim in claims] == [one.id, two.id]

    @on_store
    async def test_tasks(self, b: StoreBench) -> None:
        await b.enqueue(task="a")
        wanted = await b.enqueue(task="b", due_at=T0 + 1)
        assert (await b.claim(T0 + 5, tasks=())).claims == []
        claims = (await b.claim(T0 + 5, tasks=("b", "c"))).claims
        assert [claim.run.id for claim in claims] == [wanted.id]
        assert len((await b.claim(T0 + 5, tasks=("a",))).claims) == 1

    @on_store
    async def test_states(self, b: StoreBench) -> None:
        await b.enqueue(state=State.BLOCKED)
        await b.enqueue(state=State.SKIPPED)
        waiting = await b.enqueue()
        retrying = await b.enqueue(state=State.RETRYING)
        assert [c.run.id for c in (await b.claim()).claims] == [waiting.id, retrying.id]

    @on_store
    async def test_future_runs_wait_for_their_time(self, b: StoreBench) -> None:
        run = await b.enqueue(due_at=T0 + 100)
        later = await b.enqueue(due_at=T0 + 300)
        claimed = await b.claim(T0 + 99)
        assert (claimed.claims, claimed.next_at) == ([], T0 + 100)
        claimed = await b.claim(T0 + 100)
        assert [claim.run.id for claim in claimed.claims] == [run.id]
        assert claimed.next_at == T0 + 300
        assert (await b.claim(T0 + 300, ids=[later.id])).next_at is None
        assert (await b.claim(T0 + 300)).next_at is None

    @on_store
    async def test_future_runs_with_gates_wait_for_their_time(self, b: StoreBench) -> None:
        runs = [await b.enqueue(made=[Gate("g", 9)], gates=("g",), due_at=T0 + at) for at in (100, 300)]
        assert (await b.claim(T0 + 99)).claims == []
        for run in runs:
            assert [claim.run.id for claim in (await b.claim(run.due_at)).claims] == [run.id]

    @on_store
    async def test_next_at_counts_only_offered_lanes_and_tasks(self, b: StoreBench) -> None:
        await b.enqueue(due_at=T0 + 10, task="other")
        await b.enqueue(due_at=T0 + 20, lane="other/lane")
        assert (await b.claim()).next_at is None
        await b.enqueue(due_at=T0 + 30)
        assert (await b.claim()).next_at == T0 + 30

    @on_store
    async def test_next_at_is_past_while_more_is_due(self, b: StoreBench) -> None:
        for _ in range(3):
            await b.enqueue()
        claimed = await b.claim(T0 + 5, limit=2)
        assert len(claimed.claims) == 2
        assert claimed.next_at is not None
        assert claimed.next_at <= T0 + 5

    @on_store
    async def test_priority_then_time(self, b: StoreBench) -> None:
        expected = []
        for priority, due in ((3, 0), (2, 5), (0, 9), (1, 7), (2, 1), (0, 8), (1, 6), (3, 3)):
            run = await b.enqueue(priority=priority, due_at=T0 + due)
            expected.append((priority, due, run.id))
        claims = (await b.claim(T0 + 20)).claims
        assert [claim.run.id for claim in claims] == [run_id for _, _, run_id in sorted(expected)]

    @on_store
    async def test_time_order_holds_across_lanes(self, b: StoreBench) -> None:
        for offset in range(12):
            await b.enqueue(lane="n/busy", due_at=T0 + 10 + offset)
        oldest = await b.enqueue(lane="n/quiet", due_at=T0)
        claims = (await b.claim(T0 + 60, limit=1, lanes=("n/busy", "n/quiet"))).claims
        assert [claim.run.id for claim in claims] == [oldest.id]

    @on_store
    async def test_limit(self, b: StoreBench) -> None:
        runs = [await b.enqueue(due_at=T0 + i) for i in range(5)]
        taken = [claim.run.id for claim in (await b.claim(T0 + 9, limit=2)).claims]
        taken += [claim.run.id for claim in (await b.claim(T0 + 9, limit=2)).claims]
        taken += [claim.run.id for claim in (await b.claim(T0 + 9, limit=2)).claims]
        assert taken == [run.id for run in runs]

    @on_store
    async def test_a_run_that_crashed_is_claimed_alone(self, b: StoreBench) -> None:
        await b.enqueue(id="a", ready_at=T0)
        await b.enqueue(id="b", ready_at=T0 + 1, crashes=1)
        await b.enqueue(id="c", ready_at=T0 + 2, crashes=2)
        await b.enqueue(id="d", ready_at=T0 + 3)
        await b.enqueue(id="e", ready_at=T0 + 4)
        got = [[c.run.id for c in (await b.claim(T0 + 10)).claims] for _ in range(5)]
        assert got == [["a"], ["b"], ["c"], ["d", "e"], []]

    @on_store
    async def test_a_claim_in_a_commit_takes_runs_which_the_commit_inserts(self, b: StoreBench) -> None:
        await b.enqueue(id="old", ready_at=T0)
        new = make_run(b.ids, id="new", ready_at=T0 + 1)
        claim_request = ClaimRequest(Offer("w9", (DEFAULT_LANE,), (new.task,), 500), 10)
        applied = await b.store.apply([enqueue_change(b.ids, new)], claim_request=claim_request, now=T0 + 5)
        assert [result.status for result in applied.results] == ["accepted"]
        assert applied.claimed is not None
        assert (applied.claimed.now, applied.claimed.next_at) == (T0 + 5, None)
        assert [claim.run.id for claim in applied.claimed.claims] == ["old", "new"]
        for claim in applied.claimed.claims:
            assert (claim.run.owner, claim.run.epoch, claim.run.lease_until) == ("w9", 1, T0 + 505)
            assert await b.run(claim.run.id) == claim.run
            assert [type(e).__name__ for e in await b.events(run_id=claim.run.id)] == ["RunScheduled", "RunStarted"]

    @on_store
    async def test_a_claim_in_a_commit_passes_gates_which_the_commit_releases(self, b: StoreBench) -> None:
        gate = Gate("g", 1)
        await b.enqueue(id="a", gates=("g",), made=[gate])
        running = await b.start(T0)
        await b.enqueue(id="b", gates=("g",))
        claim_request = ClaimRequest(Offer("w9", (DEFAULT_LANE,), (running.task,), 500), 1)
        done = replace(finish_change(b.ids, running), releases=("g",))
        applied = await b.store.apply([done], claim_request=claim_request, now=T0 + 5)
        assert applied.claimed is not None
        assert [claim.run.id for claim in applied.claimed.claims] == ["b"]
        assert (await b.run("a")).state is State.SUCCEEDED

    @on_store
    async def test_a_claim_request_without_a_change_is_a_claim(self, b: StoreBench) -> None:
        run = await b.enqueue()
        applied = await b.store.apply(
            [], claim_request=ClaimRequest(Offer("w9", (DEFAULT_LANE,), (run.task,), 500), 10), now=T0 + 5
        )
        assert applied.claimed is not None
        assert [claim.run.id for claim in applied.claimed.claims] == [run.id]
        assert (await b.store.apply([], now=T0 + 5)).claimed is None

    @on_store
    async def test_limit_behind_many_of_other_tasks(self, b: StoreBench) -> None:
        for _ in range(30):
            await b.enqueue(task="other")
        mine = await b.enqueue(due_at=T0 + 1)
        assert [claim.run.id for claim in (await b.claim(T0 + 2, limit=1)).claims] == [mine.id]

    @on_store
    async def test_ids(self, b: StoreBench) -> None:
        runs = [await b.enqueue(due_at=T0 + i) for i in range(6)]
        future = await b.enqueue(due_at=T0 + 50)
        foreign = await b.enqueue(task="other")
        asked = [runs[4].id, runs[2].id, future.id, foreign.id, "00000000-0000-7000-8000-ffffffffffff"]
        claims = (await b.claim(T0 + 9, ids=asked)).claims
        assert [claim.run.id for claim in claims] == [runs[2].id, runs[4].id]
        assert len((await b.claim(T0 + 9)).claims) == 4

    @on_store
    async def test_claim_by_id_respects_the_limit_and_reports_other_due_runs(self, b: StoreBench) -> None:
        runs = [await b.enqueue(due_at=T0 + i) for i in range(4)]
        elsewhere = await b.enqueue(lane="default/mail")
        named = [run.id for run in runs[1:]] + [elsewhere.id]
        first = await b.claim(T0 + 9, ids=named, limit=2)
        assert [claim.run.id for claim in first.claims] == [runs[1].id, runs[2].id]
        second = await b.claim(T0 + 9, ids=named, limit=2)
        assert [claim.run.id for claim in second.claims] == [runs[3].id]
        assert second.next_at is not None
        assert second.next_at <= T0 + 9  # the run that was not named is due
        assert (await b.claim(T0 + 9, ids=named)).claims == []

    @on_store
    async def test_runs_claimed_by_id_must_pass_their_gates(self, b: StoreBench) -> None:
        runs = [await b.enqueue(due_at=T0 + i, gates=("g",), made=[Gate("g", 1)]) for i in range(3)]
        free = await b.enqueue(due_at=T0 + 3)
        named = [run.id for run in (*runs, free)]
        for _ in range(2):
            got = {claim.run.id for claim in (await b.claim(T0 + 9, ids=named)).claims}
            assert got <= {runs[0].id, free.id}
        assert [(await b.run(run.id)).state for run in runs] == [State.RUNNING, State.WAITING, State.WAITING]
        assert (await b.run(free.id)).state is State.RUNNING
        assert await b.gate("g") == Gate("g", 1, held=1)

    @on_store
    async def test_concurrent_claimers_get_distinct_runs(self, b: StoreBench) -> None:
        await b.accept(*(enqueue_change(b.ids, make_run(b.ids)) for _ in range(60)))
        offers = [Offer(f"w{i}", (DEFAULT_LANE,), ("t",), 1_000) for i in range(8)]
        answers = await asyncio.gather(*(b.store.claim(offer, 10, now=T0) for offer in offers))
        given = Counter(claim.run.id for answer in answers for claim in answer.claims)
        assert len(given) == 60
        assert set(given.values()) == {1}
        for offer, answer in zip(offers, answers, strict=True):
            assert {claim.run.owner for claim in answer.claims} <= {offer.owner}
        assert Counter(event.run_id for event in await b.events(types=("RunStarted",))) == given

    @on_store
    async def test_concurrent_claimers_respect_a_gate(self, b: StoreBench) -> None:
        runs = [make_run(b.ids, gates=("g",)) for _ in range(20)]
        await b.accept(*(enqueue_change(b.ids, run, gates=[Gate("g", 3)]) for run in runs))
        offers = [Offer(f"w{i}", (DEFAULT_LANE,), ("t",), 1_000) for i in range(8)]
        answers = await asyncio.gather(*(b.store.claim(offer, 5, now=T0) for offer in offers))
        assert sum(len(answer.claims) for answer in answers) == 3
        assert await b.gate("g") == Gate("g", 3, held=3)

    @on_store
    async def test_an_expired_lease_is_never_claimed(self, b: StoreBench) -> None:
        run = await b.enqueue()
        running = await b.start(ttl=10)
        assert (await b.claim(T0 + 60_000, owner="w2")).claims == []
        assert (await b.claim(T0 + 60_000, owner="w2", ids=[run.id])).claims == []
        assert await b.run(run.id) == running


class GatedClaims(ContractBase):
    """Tests of `claim` for runs with gates, and of `due` for parked runs."""

    @on_store
    async def test_gate_admits_max(self, b: StoreBench) -> None:
        runs = [await b.enqueue(made=[Gate("g", 2)], gates=("g",), due_at=T0 + i) for i in range(4)]
        free = await b.enqueue(due_at=T0 + 9)
        claims = (await b.claim(T0 + 10)).claims
        assert [claim.run.id for claim in claims] == [runs[0].id, runs[1].id, free.id]
        assert await b.gate("g") == Gate("g", 2, held=2)
        assert [run.parked_on for run in await b.runs()] == [None, None, "g", "g", None]
        assert [run.n for run in await b.runs()] == [2, 2, 1, 1, 2]

    @on_store
    async def test_parked_runs_are_not_claimable(self, b: StoreBench) -> None:
        for _ in range(2):
            await b.enqueue(made=[Gate("g", 1)], gates=("g",))
        running = await b.start()
        await b.end(running)
        claimed = await b.claim(T0 + 1)
        assert (claimed.claims, claimed.next_at) == ([], None)
        assert (await b.store.due(Agenda.GATES, 10, now=T0 + 1)).unparked == 1
        assert (await b.start(T0 + 1)).id != running.id

    @on_store
    async def test_several_gates(self, b: StoreBench) -> None:
        gates = [Gate("a", 2), Gate("b", 1), Gate("c", 5)]
        both = await b.enqueue(made=gates, gates=("a", "b"), due_at=T0)
        blocked = await b.enqueue(gates=("c", "b"), due_at=T0 + 1)
        first = await b.enqueue(gates=("a", "c"), due_at=T0 + 2)
        last = await b.enqueue(gates=("a",), due_at=T0 + 3)
        claims = (await b.claim(T0 + 9)).claims
        assert [claim.run.id for claim in claims] == [both.id, first.id]
        assert [(await b.gate(name)).held for name in "abc"] == [2, 1, 1]
        assert (await b.run(blocked.id)).parked_on == "b"
        assert (await b.run(last.id)).parked_on == "a"

    @on_store
    async def test_a_gate_without_a_row_admits_all(self, b: StoreBench) -> None:
        for _ in range(3):
            await b.enqueue(gates=("nobody made",))
        assert len((await b.claim()).claims) == 3

    @on_store
    async def test_a_closed_gate_admits_none_until_its_time(self, b: StoreBench) -> None:
        for name in ("g", "schedule:g"):
            run = await b.enqueue(made=[Gate(name, 5, closed_until=T0 + 100)], gates=(name,))
            assert (await b.claim(T0 + 1)).claims == []
            assert (await b.run(run.id)).parked_on == name
            assert (await b.store.due(Agenda.GATES, 10, now=T0 + 99)).unparked == 0
            assert (await b.store.due(Agenda.GATES, 10, now=T0 + 100)).unparked == 1
            assert (await b.start(T0 + 100)).id == run.id

    @on_store
    async def test_runs_are_unparked_in_order_up_to_the_room(self, b: StoreBench) -> None:
        made = [Gate("g", 1)]
        first = await b.enqueue(made=made, gates=("g",), priority=0)
        low = await b.enqueue(gates=("g",), priority=3, due_at=T0)
        late = await b.enqueue(gates=("g",), priority=1, due_at=T0 + 6)
        soon = await b.enqueue(gates=("g",), priority=1, due_at=T0 + 5)
        running = await b.start(T0 + 10)
        assert running.id == first.id
        due = await b.store.due(Agenda.GATES, 10, now=T0 + 10)
        assert (due.now, due.unparked) == (T0 + 10, 0)
        await b.end(running)
        for expected in (soon, late, low):
            assert (await b.store.due(Agenda.GATES, 10, now=T0 + 11)).unparked == 1
            running = await b.start(T0 + 11)
            assert running.id == expected.id
            await b.end(running)
        assert (await b.store.due(Agenda.GATES, 10, now=T0 + 11)).unparked == 0

    @on_store
    async def test_a_new_run_does_not_overtake_a_parked_one(self, b: StoreBench) -> None:
        first = await b.enqueue(made=[Gate("g", 1)], gates=("g",), due_at=T0)
        parked = await b.enqueue(gates=("g",), due_at=T0 + 1)
        running = await b.start(T0 + 2)
        assert running.id == first.id
        assert (await b.claim(now=T0 + 2)).claims == []
        await b.end(running)
        late = await b.enqueue(gates=("g",), due_at=T0 + 3)
        urgent = await b.enqueue(gates=("g",), priority=0, due_at=T0 + 4)
        assert (await b.start(T0 + 5)).id == urgent.id, "a greater urgency may pass"
        assert (await b.run(late.id)).parked_on == (await b.run(parked.id)).parked_on == "g"

    @on_store
    async def test_unpark_limit(self, b: StoreBench) -> None:
        for _ in range(5):
            await b.enqueue(made=[Gate("g", 0)], gates=("g",))
        assert (await b.claim()).claims == []
        await b.enqueue(made=[Gate("g", 9)], task="other")
        assert (await b.store.due(Agenda.GATES, 2, now=T0)).unparked == 2
        assert sum(run.parked_on is None for run in await b.runs(task="t")) == 2

    @on_store
    async def test_more_room_after_max_was_raised(self, b: StoreBench) -> None:
        for _ in range(4):
            await b.enqueue(made=[Gate("g", 1)], gates=("g",))
        await b.start()
        await b.enqueue(made=[Gate("g", 3)], task="other")
        assert (await b.store.due(Agenda.GATES, 10, now=T0)).unparked == 2
        assert len((await b.claim(owner="w2")).claims) == 2
        assert await b.gate("g") == Gate("g", 3, held=3)


class Renewals(ContractBase):
    """Tests of `renew` and `progress`."""

    @on_store
    async def test_renew_extends(self, b: StoreBench) -> None:
        await b.enqueue()
        running = await b.start(ttl=100)
        renewed = await b.store.renew("w1", [(running.id, 1)], 300, now=T0 + 99)
        assert (renewed.now, renewed.kept, renewed.lost) == (T0 + 99, frozenset({running.id}), frozenset())
        assert (renewed.cancel, renewed.strays) == ({}, ())
        assert await b.run(running.id) == replace(running, lease_until=T0 + 399)
        assert await b.names() == ["RunScheduled", "RunStarted"]

    @on_store
    async def test_an_expired_lease_is_lost_before_any_rescue(self, b: StoreBench) -> None:
        await b.enqueue()
        running = await b.start(ttl=100)
        renewed = await b.store.renew("w1", [(running.id, 1)], 300, now=T0 + 100)
        assert (renewed.kept, renewed.lost) == (frozenset(), frozenset({running.id}))
        assert await b.run(running.id) == running

    @on_store
    async def test_renew_needs_the_right_owner_and_epoch(self, b: StoreBench) -> None:
        await b.enqueue()
        run = await b.start()
        ghost = b.ids.next()
        for owner, leases in (
            ("w2", [(run.id, 1)]),
            ("w1", [(run.id, 0)]),
            ("w1", [(run.id, 2)]),
            ("w1", [(ghost, 1)]),
        ):
            renewed = await b.store.renew(owner, leases, 300, now=T0 + 1)
            assert (renewed.kept, renewed.lost) == (frozenset(), frozenset(run_id for run_id, _ in leases))
        assert (await b.run(run.id)).lease_until == run.lease_until
        await b.end(run)
        assert (await b.store.renew("w1", [(run.id, 1)], 300, now=T0 + 1)).lost == {run.id}

    @on_store
    async def test_renew_many_reports_each(self, b: StoreBench) -> None:
        for _ in range(3):
            await b.enqueue()
        one, two, three = (claim.run for claim in (await b.claim()).claims)
        await b.end(two)
        asked = CancelRequested(run_id=three.id, reason="user")
        await b.accept(move_change(b.ids, three, asked, cancel="user"))
        renewed = await b.store.renew("w1", [(r.id, 1) for r in (one, two, three)], 300, now=T0 + 1)
        assert renewed.kept == {one.id, three.id}
        assert renewed.lost == {two.id}
        assert renewed.cancel == {three.id: "user"}

    @on_store
    async def test_renew_reports_runs_that_the_owner_did_not_name(self, b: StoreBench) -> None:
        for _ in range(3):
            await b.enqueue()
        known = await b.start(limit=1)
        stray = await b.start(limit=1)
        await b.start(limit=1, owner="w2")
        renewed = await b.store.renew("w1", [(known.id, 1)], 300, now=T0 + 1)
        assert renewed.strays == (stray,)
        assert [run.id for run in (await b.store.renew("w1", [], 300, now=T0 + 1)).strays] == [known.id, stray.id]
        assert (await b.store.renew("w3", [], 300, now=T0 + 1)).strays == ()

    @on_store
    async def test_progress(self, b: StoreBench) -> None:
        run = await b.enqueue()
        assert not await b.store.progress(run.id, 0, "early")
        running = await b.start()
        assert await b.store.progress(run.id, 1, '3 of 7 "é"')
        assert await b.run(run.id) == replace(running, progress='3 of 7 "é"')
        assert not await b.store.progress(run.id, 2, "stale")
        assert not await b.store.progress(b.ids.next(), 1, "ghost")
        assert (await b.run(run.id)).progress == '3 of 7 "é"'
        assert await b.names() == ["RunScheduled", "RunStarted"]
