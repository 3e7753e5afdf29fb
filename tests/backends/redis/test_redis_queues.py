"""Claims on Redis with many queues: other workers' queues neither slow a claim nor hide runs from it."""

from __future__ import annotations

import pytest

from mainspring.backends.redis import RedisStore
from mainspring.ports.store import LaneCount, Lanes, Offer
from mainspring.testing.contract.factories import T0, Ids, enqueue_change, finish_change, make_run
from servers.for_tests_redis import fresh_url, server_url

pytestmark = pytest.mark.tampers


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_a_claim_among_many_queues(kind: str) -> None:
    store = RedisStore(fresh_url(server_url("valkey" if kind == "valkey" else "redis")))
    await store.open()
    ids = Ids()
    try:
        others = [make_run(ids, task=f"other {i}", priority=i % 4) for i in range(60)]
        mine = [
            make_run(ids, task="t", priority=priority, lane=lane, due_at=T0 + at)
            for priority, lane, at in ((2, "a/b", 3), (2, "c/d", 1), (2, "a/b", 2), (0, "c/d", 9), (1, "a/b", 400))
        ]
        await store.apply([enqueue_change(ids, run) for run in (*others, *mine)], now=T0)
        claimed = await store.claim(Offer("w", ("a/b", "c/d"), ("t", "u"), 1_000), 10, now=T0 + 10)
        assert [claim.run.id for claim in claimed.claims] == [mine[i].id for i in (3, 1, 2, 0)]
        assert claimed.next_at == T0 + 400
        waiting = await store.find(Lanes())
        assert sum(lane.waiting for lane in waiting) == 61
        assert LaneCount("a/b", 1, 1) in waiting
        await store.apply([finish_change(ids, claim.run) for claim in claimed.claims], now=T0 + 20)
        nothing = await store.claim(Offer("w", ("a/b",), ("other 1",), 1_000), 10, now=T0 + 10)
        assert (nothing.claims, nothing.next_at) == ([], None)
    finally:
        await store.close()
