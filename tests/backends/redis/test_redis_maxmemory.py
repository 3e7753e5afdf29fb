"""A server at maxmemory refuses new work whole, and lets running work end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mainspring.backends.redis import RedisStore
from mainspring.model.errors import StoreFull
from mainspring.ports.store import Agenda, Events, Gates, Offer, Runs, Schedules
from mainspring.testing.contract.factories import (
    T0,
    Ids,
    create_schedule_change,
    enqueue_change,
    finish_change,
    make_run,
    make_schedule,
    plan_change,
)
from servers.for_tests_redis import skipping
from servers.redis import Kind, RedisServer
from tests.backends.bulks import bulk_change

OFFER = Offer("w", ("default/default",), ("t",), 30_000)


@pytest.fixture(scope="module", params=["valkey", "redis"])
def own_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    kind: Kind = request.param
    server = skipping(lambda: RedisServer(kind, fsync=None).start())
    yield server
    server.remove()


def set_memory_limit(server: RedisServer) -> None:
    server.do("CONFIG", "SET", "maxmemory", "1")


def lift_memory_limit(server: RedisServer) -> None:
    server.do("CONFIG", "SET", "maxmemory", "0")


async def read_everything(store: RedisStore) -> list[Any]:
    return [await store.find(query) for query in (Runs(), Schedules(), Events(), Gates())]


@pytest.mark.tampers
async def test_at_maxmemory_new_work_is_refused_whole_and_running_work_may_end(own_server: RedisServer) -> None:
    lift_memory_limit(own_server)
    store = RedisStore(f"{own_server.url}?prefix=full")
    await store.open()
    store._db.memory._read_at = float("inf")  # so that the server refuses, not the store's own check
    ids = Ids()
    schedule = make_schedule(ids)
    try:
        await store.apply([create_schedule_change(ids, schedule)], now=T0)
        (schedule,) = await store.find(Schedules())
        await store.apply([enqueue_change(ids, make_run(ids, gates=("g",) * (i == 3))) for i in range(5)], now=T0)
        running = [claim.run for claim in (await store.claim(OFFER, 2, now=T0)).claims]
        before = await read_everything(store)
        set_memory_limit(own_server)
        many = tuple(make_run(ids) for _ in range(3))
        bulk = bulk_change(ids, many)
        for batch in (
            [enqueue_change(ids, make_run(ids))],
            [enqueue_change(ids, make_run(ids, unique_key="k"), body="1"), enqueue_change(ids, make_run(ids))],
            [bulk],
            [create_schedule_change(ids, make_schedule(ids))],
            [plan_change(ids, schedule, [T0 + 1_000, T0 + 2_000])],
            [finish_change(ids, running[0]), enqueue_change(ids, make_run(ids))],
        ):
            with pytest.raises(StoreFull, match="maxmemory"):
                await store.apply(batch, now=T0)
        assert await read_everything(store) == before
        renewed = await store.renew("w", [(run.id, run.epoch) for run in running], 30_000, now=T0 + 1)
        assert len(renewed.kept) == 2
        assert await store.progress(running[1].id, 1, "half")
        results = (await store.apply([finish_change(ids, run) for run in running], now=T0 + 2)).results
        assert [result.status for result in results] == ["accepted", "accepted"]
        claims = (await store.claim(OFFER, 9, now=T0 + 3)).claims
        assert len(claims) == 3
        assert (await store.due(Agenda.EXPIRED, 9, now=T0 + 60_000)).runs != ()
        assert (await store.due(Agenda.SCHEDULES, 9, now=T0 + 60_000)).schedules != ()
        lift_memory_limit(own_server)
        results = (await store.apply([bulk], now=T0 + 4)).results
        assert [result.status for result in results] == ["accepted"]
    finally:
        lift_memory_limit(own_server)
        await store.close()
