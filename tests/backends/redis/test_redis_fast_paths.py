"""The fast paths of the Redis store's `apply` write what the long script writes, key for key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from mainspring.backends.redis import RedisStore, apply
from mainspring.model.change import Change
from mainspring.model.events import CancelRequested
from mainspring.model.gate import Gate
from mainspring.ports.store import ClaimRequest, Offer
from mainspring.testing.contract.factories import (
    T0,
    Ids,
    create_schedule_change,
    enqueue_change,
    finish_change,
    fire_run,
    make_run,
    make_schedule,
    move_change,
    scheduled,
    with_kind,
)
from servers.for_tests_redis import fresh_url, server_url

OFFER = Offer("wörker", ("default/default", "a/b"), ("t", "tâche\0"), 30_000)

Story = Callable[[RedisStore, Ids], Awaitable[list[Any]]]


async def statuses(store: RedisStore, changes: list[Change], now: int = T0) -> list[Any]:
    """Return the answers to a batch, without the rows in them."""
    return [(result.status, result.n) for result in (await store.apply(changes, now=now)).results]


async def enqueue_story(store: RedisStore, ids: Ids) -> list[Any]:
    """Insert runs: one, 300 equal ones, different ones, unique keys, existing keys, a bulk, existing runs."""
    one = enqueue_change(ids, make_run(ids))
    alike = [enqueue_change(ids, make_run(ids)) for _ in range(300)]
    differ = [
        enqueue_change(ids, make_run(ids, priority=0, lane="a/b", task="tâche\0", ns="n", crashes=3)),
        enqueue_change(ids, make_run(ids, due_at=T0 + 5, ready_at=T0 + 9, gates=("g",)), body='{"a":1}'),
        enqueue_change(ids, make_run(ids), body='{"a":1}'),
        enqueue_change(ids, make_run(ids), body='{"b":2}'),
    ]
    keyed = [enqueue_change(ids, make_run(ids, unique_key=key, ns=ns)) for key, ns in (("k", "a"), ("k", "b"))]
    taken = [enqueue_change(ids, make_run(ids, unique_key=key, ns="a")) for key in ("l", "k")]
    twice = [enqueue_change(ids, make_run(ids, unique_key="m")) for _ in range(2)]
    runs = tuple(make_run(ids) for _ in range(3))
    many = with_kind(Change(id=ids.change(), runs=runs, events=tuple(scheduled(run) for run in runs)))
    results = []
    for batch in ([one], alike, differ, keyed, taken, twice, [many], [*alike, enqueue_change(ids, make_run(ids))]):
        results += await statuses(store, batch)
    return results


async def finish_story(store: RedisStore, ids: Ids) -> list[Any]:
    """Complete runs: with and without a schedule, with a result, twice, with a gate, with a cancel request."""
    schedule = make_schedule(ids)
    await store.apply([create_schedule_change(ids, schedule)], now=T0)
    births = [enqueue_change(ids, make_run(ids)) for _ in range(4)]
    births += [enqueue_change(ids, fire_run(schedule, T0)), enqueue_change(ids, make_run(ids, unique_key="k"))]
    births.append(enqueue_change(ids, make_run(ids, gates=("g",)), gates=[Gate("g", 9)]))
    await store.apply(births, now=T0)
    claims = [claim.run for claim in (await store.claim(OFFER, 10, now=T0 + 1)).claims]
    assert len(claims) == 7
    asked = CancelRequested(run_id=claims[3].id, reason="user")
    await store.apply([move_change(ids, claims[3], asked, cancel="user")], now=T0 + 1)
    changes = [finish_change(ids, run) for run in claims]
    changes[1] = finish_change(ids, claims[1], result='"ü"')
    results = await statuses(store, changes[:1], T0 + 2)
    results += await statuses(store, changes, T0 + 3)
    return results


async def claim_story(store: RedisStore, ids: Ids) -> list[Any]:
    """Complete runs and claim the next ones in one call, across a block of the log and until no run is left."""
    await store.apply([enqueue_change(ids, make_run(ids, due_at=T0 + i)) for i in range(200)], now=T0)
    running = [claim.run for claim in (await store.claim(OFFER, 90, now=T0 + 999)).claims]
    results: list[Any] = []
    while running:
        claim_request = ClaimRequest(OFFER, 60)
        applied = await store.apply(
            [finish_change(ids, run) for run in running], claim_request=claim_request, now=T0 + 1_000
        )
        assert applied.claimed is not None
        running = [claim.run for claim in applied.claimed.claims]
        results.append((len(running), applied.claimed.next_at, [result.status for result in applied.results]))
    return results


async def mixed_story(store: RedisStore, ids: Ids) -> list[Any]:
    """Insert and complete runs in one batch: a unique key that changes hands, an existing run, a claim request."""
    first = [enqueue_change(ids, make_run(ids, unique_key=f"k{i}" if i < 2 else None)) for i in range(6)]
    await store.apply(first, now=T0)
    running = [claim.run for claim in (await store.claim(OFFER, 6, now=T0 + 1)).claims]
    done = [finish_change(ids, run) for run in running]
    new = [enqueue_change(ids, make_run(ids), body=f'"{i}"') for i in range(3)]
    takes = enqueue_change(ids, make_run(ids, unique_key="k0"))
    results = await statuses(store, [done[0], takes, new[0]], T0 + 2)
    results += await statuses(store, [new[1], done[1], done[2]], T0 + 3)
    results += await statuses(store, [done[3], new[1], done[2]], T0 + 4)
    applied = await store.apply([new[2], done[4], done[5]], claim_request=ClaimRequest(OFFER, 9), now=T0 + 5)
    assert applied.claimed is not None
    results += [(result.status, result.n) for result in applied.results]
    return [*results, [claim.run.id for claim in applied.claimed.claims]]


async def read_keys(store: RedisStore) -> dict[str, Any]:
    """Return every key of the store with its value, in an order that can be compared."""
    found: dict[str, Any] = {}
    key_prefix = store._db.key_prefix
    with redis.Redis.from_url(server_url("valkey"), protocol=2) as client:
        for key in client.scan_iter(match=f"{key_prefix}*", count=1_000):
            name = key.removeprefix(key_prefix.encode()).decode()
            kind = client.type(key)
            if kind == b"hash":
                found[name] = client.hgetall(key)
            elif kind == b"zset":
                found[name] = client.zrange(key, 0, -1, withscores=True)
            elif kind == b"set":
                found[name] = client.smembers(key)
            else:
                found[name] = client.get(key) if kind == b"string" else client.lrange(key, 0, -1)
    return found


@pytest.mark.tampers
@pytest.mark.parametrize("story", [enqueue_story, finish_story, claim_story, mixed_story])
async def test_the_fast_paths_write_the_same_rows_as_the_long_script(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell_story() -> tuple[list[Any], dict[str, Any]]:
        store = RedisStore(fresh_url(server_url("valkey")))
        await store.open()
        try:
            return await story(store, Ids()), await read_keys(store)
        finally:
            await store.close()

    fast_answers: list[object] = []

    def spy(name: str) -> None:
        original = getattr(apply, name)

        async def taken(*args: Any) -> Any:
            answer = await original(*args)
            fast_answers.append(answer)
            return answer

        monkeypatch.setattr(apply, name, taken)

    async def decline(*args: Any) -> None:
        """Answer that the batch needs the long script."""

    for name in ("insert_runs", "complete_runs"):
        spy(name)
    short = await tell_story()
    assert any(answer is not None for answer in fast_answers)
    for name in ("insert_runs", "complete_runs"):
        monkeypatch.setattr(apply, name, decline)
    long = await tell_story()
    assert short[0] == long[0]
    assert set(short[1]) == set(long[1])
    for key, value in short[1].items():
        assert value == long[1][key], key
