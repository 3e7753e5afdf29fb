"""The short ways of Redis's `apply` write what the long one writes, key for key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from mainspring.model.change import Change
from mainspring.model.events import CancelRequested
from mainspring.model.gate import Gate
from mainspring.ports.store import Offer, Wish
from mainspring.stores.redis import RedisStore, apply
from mainspring.testing.factories import (
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
)
from servers.for_tests_redis import fresh_url, server_url

OFFER = Offer("wörker", ("default/default", "a/b"), ("t", "tâche\0"), 30_000)

Story = Callable[[RedisStore, Ids], Awaitable[list[Any]]]


async def plain(store: RedisStore, changes: list[Change], now: int = T0) -> list[Any]:
    """The answers without the rows that they show."""
    return [(result.status, result.n) for result in (await store.apply(changes, now=now)).results]


async def enqueued(store: RedisStore, ids: Ids) -> list[Any]:
    """One, some that are alike, some that differ in everything, many at once, some that are there."""
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
    many = Change(id=ids.change(), runs=runs, events=tuple(scheduled(run) for run in runs))
    said = []
    for batch in ([one], alike, differ, keyed, taken, twice, [many], [*alike, enqueue_change(ids, make_run(ids))]):
        said += await plain(store, batch)
    return said


async def finished(store: RedisStore, ids: Ids) -> list[Any]:
    """Of a schedule and not, with a result, under another's lease, with a gate, asked to stop."""
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
    said = await plain(store, changes[:1], T0 + 2)
    said += await plain(store, changes, T0 + 3)
    return said


async def rode_along(store: RedisStore, ids: Ids) -> list[Any]:
    """Outcomes and the next claim in one call, over the end of a block of the log and past the last run."""
    await store.apply([enqueue_change(ids, make_run(ids, due_at=T0 + i)) for i in range(200)], now=T0)
    running = [claim.run for claim in (await store.claim(OFFER, 90, now=T0 + 999)).claims]
    said: list[Any] = []
    while running:
        wish = Wish(OFFER, 60)
        applied = await store.apply([finish_change(ids, run) for run in running], wish=wish, now=T0 + 1_000)
        assert applied.claimed is not None
        running = [claim.run for claim in applied.claimed.claims]
        said.append((len(running), applied.claimed.next_at, [result.status for result in applied.results]))
    return said


async def mixed(store: RedisStore, ids: Ids) -> list[Any]:
    """New runs among outcomes, a key that one gives up and another takes, one that exists, a claim with them."""
    first = [enqueue_change(ids, make_run(ids, unique_key=f"k{i}" if i < 2 else None)) for i in range(6)]
    await store.apply(first, now=T0)
    running = [claim.run for claim in (await store.claim(OFFER, 6, now=T0 + 1)).claims]
    done = [finish_change(ids, run) for run in running]
    new = [enqueue_change(ids, make_run(ids), body=f'"{i}"') for i in range(3)]
    takes = enqueue_change(ids, make_run(ids, unique_key="k0"))
    said = await plain(store, [done[0], takes, new[0]], T0 + 2)
    said += await plain(store, [new[1], done[1], done[2]], T0 + 3)
    said += await plain(store, [done[3], new[1], done[2]], T0 + 4)
    applied = await store.apply([new[2], done[4], done[5]], wish=Wish(OFFER, 9), now=T0 + 5)
    assert applied.claimed is not None
    said += [(result.status, result.n) for result in applied.results]
    return [*said, [claim.run.id for claim in applied.claimed.claims]]


async def rows(store: RedisStore) -> dict[str, Any]:
    """Every key of the store with what is in it, in one order."""
    found: dict[str, Any] = {}
    marker = store._db.marker
    with redis.Redis.from_url(server_url("valkey"), protocol=2) as client:
        for key in client.scan_iter(match=f"{marker}*", count=1_000):
            name = key.removeprefix(marker.encode()).decode()
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
@pytest.mark.parametrize("story", [enqueued, finished, rode_along, mixed])
async def test_the_short_way_writes_what_the_long_one_writes(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    async def told() -> tuple[list[Any], dict[str, Any]]:
        store = RedisStore(fresh_url(server_url("valkey")))
        await store.open()
        try:
            return await story(store, Ids()), await rows(store)
        finally:
            await store.close()

    went: list[object] = []

    def spy(name: str) -> None:
        original = getattr(apply, name)

        async def taken(*args: Any) -> Any:
            answer = await original(*args)
            went.append(answer)
            return answer

        monkeypatch.setattr(apply, name, taken)

    async def never(*args: Any) -> None:
        """The short way is closed."""

    for name in ("births", "successes"):
        spy(name)
    short = await told()
    assert any(answer is not None for answer in went)
    for name in ("births", "successes"):
        monkeypatch.setattr(apply, name, never)
    long = await told()
    assert short[0] == long[0]
    assert set(short[1]) == set(long[1])
    for key, value in short[1].items():
        assert value == long[1][key], key
