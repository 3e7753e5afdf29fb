"""Natural batching: few commits, order kept, a poison change alone, a bounded queue."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from mainspring import Mainspring
from mainspring.backends.memory.store import MemoryStore
from mainspring.engine.commit import batcher as module
from mainspring.engine.commit.batcher import Batcher, Urgency
from mainspring.model.change import Change, Result, RunAbsent
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.events import Event, RunScheduled
from mainspring.model.ids import IdFactory
from mainspring.ports.store import Applied, ClaimRequest, Runs
from mainspring.rules.lifecycle import run_from_event
from mainspring.testing import travel
from mainspring.testing.contract.factories import with_kind

ids = IdFactory(random.Random(1))


class Recording(MemoryStore):
    """Counts commits, can hold one up, and refuses what is marked as poison."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.down = False

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: int | None = None
    ) -> Applied:
        await self.gate.wait()
        if self.down:
            raise StoreUnavailable("the disk is away")
        if any(change.run is not None and change.run.task == "poison" for change in changes):
            raise RuntimeError("cannot encode this")
        self.batches.append(len(changes))
        return await super().apply(changes, claim_request=claim_request, now=now)


def enqueue(task: str = "t") -> Change:
    event = RunScheduled(run_id=ids.uuid7(1), task=task, due_at=1)
    guard = RunAbsent(event.run_id or "")
    return with_kind(Change(id=ids.uuid7(1), guard=guard, run=run_from_event(event), events=(event,)))


class Sink:
    """Keeps the published events in a list, if there is one."""

    def __init__(self, events: list[Event] | None) -> None:
        self.events = events

    @property
    def has_listeners(self) -> bool:
        return self.events is not None

    def publish(self, event: Event) -> None:
        assert self.events is not None
        self.events.append(event)


async def make(
    store: Recording, events: list[Event] | None = None, *, pace: float = 0.0, is_busy: Callable[[], bool] | None = None
) -> Batcher:
    await store.open()
    return Batcher(store, pace=pace, publisher=Sink(events), is_busy=is_busy or (lambda: False))


async def test_what_arrives_during_a_commit_is_the_next_commit() -> None:
    store = Recording()
    batcher = await make(store)
    store.gate.clear()
    first = asyncio.ensure_future(batcher.apply(enqueue()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rest = [asyncio.ensure_future(batcher.apply(enqueue())) for _ in range(300)]
    await asyncio.sleep(0)
    store.gate.set()
    results = await asyncio.gather(first, *rest)
    assert all(result.status == "accepted" for result in results)
    assert store.batches == [1, 300]


async def test_no_caller_is_answered_before_the_commit() -> None:
    store = Recording()
    batcher = await make(store)
    store.gate.clear()
    answers: list[Result | StoreError] = []
    waiting = batcher.submit(enqueue())
    batcher.post(enqueue(), answers.append)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert answers == []
    store.gate.set()
    assert (await waiting).ok
    assert [isinstance(answer, Result) and answer.ok for answer in answers] == [True]


async def test_two_changes_of_one_row_go_to_two_commits_in_order() -> None:
    store = Recording()
    batcher = await make(store)
    one = enqueue()
    again = Change(id="again", guard=one.guard, run=one.run, events=one.events)
    results = await asyncio.gather(batcher.apply(one), batcher.apply(again))
    assert [result.status for result in results] == ["accepted", "refused"]
    assert store.batches == [1, 1]


async def test_one_poison_change_does_not_fail_its_neighbours() -> None:
    store = Recording()
    batcher = await make(store)
    changes = [enqueue("poison" if index == 37 else "t") for index in range(100)]
    results = await asyncio.gather(*map(batcher.apply, changes), return_exceptions=True)
    assert isinstance(results[37], StoreError)
    assert all(isinstance(result, Result) and result.ok for i, result in enumerate(results) if i != 37)
    assert len(await store.find(Runs(limit=1_000))) == 99


async def test_a_store_that_is_away_fails_every_change_of_the_commit_and_the_next_goes_through() -> None:
    store = Recording()
    batcher = await make(store)
    store.down = True
    with pytest.raises(StoreUnavailable):
        await batcher.apply(enqueue())
    store.down = False
    assert (await batcher.apply(enqueue())).ok


async def test_callers_wait_while_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_CHANGES", 10)
    store = Recording()
    batcher = await make(store)
    store.gate.clear()
    callers = [asyncio.ensure_future(batcher.apply(enqueue())) for _ in range(50)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert batcher.waiting <= 10
    store.gate.set()
    assert all(result.ok for result in await asyncio.gather(*callers))


async def test_a_commit_is_bounded_in_rows() -> None:
    store = Recording()
    batcher = await make(store)
    await asyncio.gather(*(batcher.apply(enqueue()) for _ in range(1_500)))
    assert max(store.batches) <= 1_000
    assert sum(store.batches) == 1_500


async def test_committed_events_are_published_with_their_time() -> None:
    store, heard = Recording(), list[Event]()
    batcher = await make(store, heard)
    await batcher.apply(enqueue())
    assert [type(event) for event in heard] == [RunScheduled]
    assert heard[0].at > 0


async def test_many_at_once_are_answered_together_and_in_order() -> None:
    store = Recording()
    batcher = await make(store)
    changes = [enqueue() for _ in range(1_200)]
    twice = [*changes, changes[3]]
    results = await batcher.apply_many(twice)
    assert [result.status for result in results] == ["accepted"] * 1_200 + ["repeated"]
    assert len(store.batches) <= 4
    assert await batcher.apply_many([]) == []


async def test_a_failure_among_many_is_raised_when_the_others_are_stored() -> None:
    store = Recording()
    batcher = await make(store)
    with pytest.raises(StoreError, match="cannot encode this"):
        await batcher.apply_many([enqueue(), enqueue("poison"), enqueue()])
    assert len(await store.find(Runs())) == 2


async def test_several_that_are_queued_are_answered_together_and_in_order() -> None:
    store = Recording()
    batcher = await make(store)
    changes = [enqueue() for _ in range(1_200)]
    results = await batcher.submit_all([*changes, changes[3]])
    assert [result.status for result in results] == ["accepted"] * 1_200 + ["repeated"]
    assert len(store.batches) <= 4


async def test_a_failure_among_several_is_raised_when_the_others_are_stored() -> None:
    store = Recording()
    batcher = await make(store)
    with pytest.raises(StoreError, match="cannot encode this"):
        await batcher.submit_all([enqueue(), enqueue("poison"), enqueue()])
    assert len(await store.find(Runs())) == 2


async def paced(store: Recording) -> Batcher:
    """A batcher that has just made a commit, and waits for hours before a commit that no caller waits for."""
    batcher = await make(store, pace=3600.0)
    await batcher.apply(enqueue())
    store.batches.clear()
    return batcher


async def once_idle(batcher: Batcher) -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_change_without_a_caller_shares_the_commit_of_the_next_change_with_one() -> None:
    store = Recording()
    batcher = await paced(store)
    told: list[Result | StoreError] = []
    for _ in range(3):
        batcher.post(enqueue(), told.append, Urgency.NEXT_PACE)
    await once_idle(batcher)
    assert (store.batches, batcher.waiting) == ([], 3)
    await batcher.apply(enqueue())
    assert (store.batches, len(told)) == ([4], 3)


async def test_enough_of_it_goes_by_itself() -> None:
    store = Recording()
    batcher = await paced(store)
    for _ in range(module.FLUSH_AT_CHANGES):
        batcher.post(enqueue(), lambda result: None, Urgency.NEXT_PACE)
    await once_idle(batcher)
    assert store.batches == [module.FLUSH_AT_CHANGES]


async def test_the_first_after_a_pause_goes_at_once_and_the_rest_a_moment_later() -> None:
    store = Recording()
    batcher = await make(store, pace=3600.0)
    batcher._last_commit_at = asyncio.get_running_loop().time() - 3600.0
    for _ in range(3):
        batcher.post(enqueue(), lambda result: None, Urgency.NEXT_PACE)
        await once_idle(batcher)
    assert store.batches == [1]
    await batcher.flush()
    assert store.batches == [1, 2]


async def test_a_flush_commits_at_once() -> None:
    store = Recording()
    batcher = await paced(store)
    batcher.post(enqueue(), lambda result: None, Urgency.NEXT_PACE)
    await once_idle(batcher)
    await batcher.flush()
    assert store.batches == [1]


async def test_while_the_worker_has_enough_to_do_its_outcomes_wait_longer() -> None:
    store = Recording()
    busy = [True]
    batcher = await make(store, pace=3600.0, is_busy=lambda: busy[0])
    batcher._last_commit_at = asyncio.get_running_loop().time() - 3600.0
    for _ in range(3):
        batcher.post(enqueue(), lambda result: None, Urgency.WHEN_IDLE)
        await once_idle(batcher)
    assert (store.batches, batcher.waiting) == ([], 3)
    busy[0] = False
    batcher.post(enqueue(), lambda result: None, Urgency.WHEN_IDLE)  # a slot stayed free: they go with the claim for it
    await once_idle(batcher)
    assert store.batches == [4]


async def test_nothing_waits_longer_for_a_worker_that_is_not_crowded() -> None:
    store = Recording()
    batcher = await make(store, pace=3600.0)
    batcher._last_commit_at = asyncio.get_running_loop().time() - 3600.0
    batcher.post(enqueue(), lambda result: None, Urgency.WHEN_IDLE)
    await once_idle(batcher)
    assert store.batches == [1]


@pytest.mark.parametrize("urgency", [Urgency.WAITED_FOR, Urgency.NEXT_PACE])
async def test_an_urgent_change_takes_lingering_successes_into_its_commit(urgency: Urgency) -> None:
    store = Recording()
    batcher = await make(store, pace=3600.0, is_busy=lambda: True)
    batcher._last_commit_at = asyncio.get_running_loop().time() - 3600.0
    batcher.post(enqueue(), lambda result: None, Urgency.WHEN_IDLE)
    await once_idle(batcher)
    assert store.batches == []
    batcher.post(enqueue(), lambda result: None, urgency)
    await once_idle(batcher)
    assert store.batches == [2]


async def test_a_crowded_worker_commits_its_outcomes_in_the_end() -> None:
    store = Recording()
    batcher = await make(store, pace=3600.0, is_busy=lambda: True)
    batcher._last_commit_at = asyncio.get_running_loop().time() - 3600.0 * module.BUSY_LINGER_PACES
    batcher.post(enqueue(), lambda result: None, Urgency.WHEN_IDLE)
    await once_idle(batcher)
    assert store.batches == [1]


async def test_how_long_an_outcome_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a success that nothing waits behind, and that may be repeated when it is lost."""
    seen: dict[str, Urgency] = {}
    post = Batcher.post

    def noting(
        self: Batcher,
        change: Change,
        answer: asyncio.Future[Result] | module.Answer,
        urgency: Urgency = Urgency.WAITED_FOR,
        waited: float = 0.0,
    ) -> None:
        if change.run is not None and change.run.attempt:
            seen[change.run.task] = urgency
        post(self, change, answer, urgency, waited)

    monkeypatch.setattr(Batcher, "post", noting)
    ms = Mainspring("memory://")

    @ms.task(name="plain")
    async def plain() -> None: ...

    @ms.task(name="limited", limit=1)
    async def limited() -> None: ...

    @ms.task(name="once", recovery="fail")
    async def once() -> None: ...

    @ms.task(name="fails")
    async def fails() -> None:
        raise ValueError("no")

    async with travel(ms) as t:
        for task in (plain, limited, once, fails):
            await task.enqueue()
        await t.advance("1s")
    assert seen == {
        "plain": Urgency.WHEN_IDLE,
        "limited": Urgency.NEXT_PACE,
        "once": Urgency.NEXT_PACE,
        "fails": Urgency.NEXT_PACE,
    }
