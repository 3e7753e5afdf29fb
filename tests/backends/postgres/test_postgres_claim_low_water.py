"""Claims of a backlog read from the low-water mark of the last claim; runs inserted late below it are claimed, too."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mainspring.backends.postgres import PostgresStore
from mainspring.backends.postgres.claim_low_water import NO_LOW_WATER, ClaimLowWater
from mainspring.model.change import Change
from mainspring.ports.store import ClaimRequest, Offer
from mainspring.testing.contract.factories import T0, Ids, enqueue_change, finish_change, make_run
from servers.for_tests import fresh_store

OFFER = Offer("w", ("default/default",), ("t",), 30_000)
LATER = T0 + 60_000


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = fresh_store()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def ids() -> Ids:
    return Ids()


def due(ids: Ids, *times: int, priority: int = 2) -> list[Change]:
    return [enqueue_change(ids, make_run(ids, due_at=at, ready_at=at, priority=priority)) for at in times]


async def claimed(store: PostgresStore, limit: int, now: int) -> list[int]:
    return [claim.run.ready_at for claim in (await store.claim(OFFER, limit, now=now)).claims]


async def test_the_next_claim_of_a_backlog_reads_from_the_first_run_of_the_last_claim(
    store: PostgresStore, ids: Ids
) -> None:
    await store.apply(due(ids, *range(T0, T0 + 10)))
    assert await claimed(store, 4, LATER) == [T0, T0 + 1, T0 + 2, T0 + 3]
    assert store._db.low_water.start(OFFER) == (LATER - 5_000, LATER - 5_000, T0, 0)
    assert await claimed(store, 4, LATER) == [T0 + 4, T0 + 5, T0 + 6, T0 + 7]
    assert store._db.low_water.start(OFFER) == (LATER - 5_000, LATER - 5_000, T0 + 4, 0)


async def test_a_run_inserted_late_is_claimed_when_the_backlog_ends(store: PostgresStore, ids: Ids) -> None:
    await store.apply(due(ids, *range(T0, T0 + 5)))
    assert await claimed(store, 4, LATER) == [T0, T0 + 1, T0 + 2, T0 + 3]
    await store.apply(due(ids, T0 - 1_000))
    await store.apply(due(ids, LATER - 60_000, priority=0))
    assert sorted(await claimed(store, 4, LATER)) == [T0 - 1_000, T0, T0 + 4]
    assert store._db.low_water.start(OFFER) == NO_LOW_WATER


async def test_a_run_inserted_late_into_a_backlog_is_claimed_within_a_second(store: PostgresStore, ids: Ids) -> None:
    await store.apply(due(ids, *range(T0, T0 + 20)))
    assert await claimed(store, 2, LATER) == [T0, T0 + 1]
    await store.apply(due(ids, T0 - 1_000))
    assert await claimed(store, 2, LATER + 500) == [T0 + 2, T0 + 3]
    assert await claimed(store, 2, LATER + 1_000) == [T0 + 4, T0 + 5]
    assert await claimed(store, 2, LATER + 1_001) == [T0 - 1_000, T0 + 6]


async def test_a_run_of_higher_priority_is_claimed_first_although_its_clock_is_behind(
    store: PostgresStore, ids: Ids
) -> None:
    await store.apply(due(ids, *range(T0, T0 + 10)))
    await claimed(store, 2, LATER)
    await store.apply(due(ids, LATER - 4_000, priority=0))
    assert (await claimed(store, 2, LATER))[0] == LATER - 4_000


async def test_a_claim_sharing_a_commit_asks_to_claim_again_below_its_low_water_mark(
    store: PostgresStore, ids: Ids
) -> None:
    await store.apply(due(ids, *range(T0, T0 + 4)))
    claims = (await store.claim(OFFER, 3, now=LATER)).claims
    await store.apply(due(ids, T0 - 1_000))
    done = [finish_change(ids, claim.run) for claim in claims]
    applied = await store.apply(done, claim_request=ClaimRequest(OFFER, 3), now=LATER)
    assert applied.claimed is not None
    assert [claim.run.ready_at for claim in applied.claimed.claims] == [T0 + 3]
    assert applied.claimed.next_at == LATER
    assert await claimed(store, 3, LATER) == [T0 - 1_000]


async def test_a_claim_with_another_offer_reads_from_the_beginning(store: PostgresStore, ids: Ids) -> None:
    await store.apply(due(ids, *range(T0, T0 + 10)))
    await claimed(store, 2, LATER)
    assert store._db.low_water.start(Offer("w", ("default/default",), ("t", "u"), 30_000)) == NO_LOW_WATER


async def test_a_claim_reads_behind_the_locks_of_another_for_a_second(store: PostgresStore, ids: Ids) -> None:
    await store.apply(due(ids, *range(T0, T0 + 20)))
    low_water = store._db.low_water
    async with store._db.transaction("test") as other:
        await other.fetch("SELECT id FROM §run ORDER BY ready_at LIMIT 3 FOR UPDATE")
        assert await claimed(store, 3, LATER) == [T0 + 3, T0 + 4, T0 + 5]
        assert low_water.scan_depth(3) == 6
        claim_request = ClaimRequest(OFFER, 2)
        (ended,) = (await store.claim(OFFER, 1, now=LATER)).claims
        applied = await store.apply([finish_change(ids, ended.run)], claim_request=claim_request, now=LATER)
        assert applied.claimed is not None
        assert [claim.run.ready_at for claim in applied.claimed.claims] == [T0 + 7, T0 + 8]
    await claimed(store, 2, LATER + 999)
    assert low_water.scan_depth(3) > 3
    await claimed(store, 2, LATER + 1_000)
    assert low_water.scan_depth(3) == 3


async def test_repeated_contention_doubles_the_scan_depth_up_to_eight_times_the_limit() -> None:
    low_water = ClaimLowWater()
    depths = []
    for _ in range(5):
        low_water.observe_contention(T0, contended=True)
        depths.append(low_water.scan_depth(10))
    assert depths == [20, 40, 80, 80, 80]
