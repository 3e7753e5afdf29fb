"""What a connection to Redis goes through: cancelled callers, a forgotten script, a restart, a failover."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from mainspring import Mainspring
from mainspring.model.errors import StoreUnavailable
from mainspring.ports.store import Runs
from mainspring.stores.redis import RedisStore
from mainspring.testing.factories import Ids, enqueue_change, make_run
from mainspring.verify import verify
from servers.for_tests_redis import fresh_url, server_url, skipping, tls_url
from servers.proxy import Proxy
from servers.redis import RedisServer, Sentineled

T = TypeVar("T")


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server that may be killed: what was acknowledged is on its disk."""
    one = skipping(lambda: RedisServer(fsync="always").start())
    yield one
    one.remove()


async def until_it_answers(ask: Callable[[], Awaitable[T]], patience: float = 30.0) -> T:
    """Ask again for as long as the store is away."""
    async with asyncio.timeout(patience):
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                await asyncio.sleep(0.05)


async def test_a_cancelled_call_is_cancelled_and_its_connection_not_used_again() -> None:
    store, rng = RedisStore(fresh_url()), random.Random(7)
    await store.open()
    cancelled = 0
    for number in range(300):
        if number % 2:
            pool = store._db._pool
            assert pool is not None
            pool.distrust()  # so that some are cancelled while they connect
        call = asyncio.ensure_future(store.lease(f"n{number}", f"i{number}", 1_000))
        for _ in range(rng.randrange(25)):
            await asyncio.sleep(0)
        if call.cancel():
            cancelled += 1
            with pytest.raises(asyncio.CancelledError):
                await call
        lease = await store.lease(f"m{number}", "me", 1_000)
        assert lease is not None
        assert lease.name == f"m{number}"  # and not the answer of another's call
    assert cancelled > 100
    await store.close()


async def test_a_server_that_forgot_the_scripts() -> None:
    store, ids = RedisStore(fresh_url()), Ids()
    await store.open()
    for _ in range(3):
        (flushed,) = await store._db.read(("SCRIPT", "FLUSH"))
        assert flushed == b"OK"
        assert (await store.apply([enqueue_change(ids, make_run(ids))])).results[0].status == "accepted"
    assert len(await store.find(Runs())) == 3
    await store.close()


@pytest.mark.tampers  # its proxy goes with the test
async def test_a_write_whose_answer_is_lost_is_made_once() -> None:
    ids = Ids()
    async with Proxy(server_url()) as proxy:
        store = RedisStore(fresh_url(proxy.url))
        await store.open()
        for lose in (proxy.lose_answer, proxy.lose_request):
            change = enqueue_change(ids, make_run(ids))
            lose(lambda data: b"EVALSHA" in data or b"EVAL" in data)
            (result,) = (await store.apply([change])).results
            assert result.ok
        assert proxy.lost == 2
        assert len(await store.find(Runs())) == 2
        assert (await verify(store)).ok
        await store.close()


@pytest.mark.tampers  # its server goes with the test
async def test_a_server_that_is_killed_comes_back_with_all_that_it_acknowledged(own: RedisServer) -> None:
    store, ids = RedisStore(own.url), Ids()
    await store.open()
    stored = 0
    for _ in range(3):
        for _ in range(5):
            assert (await store.apply([enqueue_change(ids, make_run(ids))])).results[0].ok
            stored += 1
        own.kill()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await store.find(Runs())
        own.start()
        assert len(await until_it_answers(lambda: store.find(Runs()))) == stored
    assert (await verify(store)).ok
    await store.close()


@pytest.mark.tampers
async def test_hints_are_heard_again_after_a_restart(own: RedisServer) -> None:
    teller, listener = RedisStore(own.url), RedisStore(own.url)
    await teller.open()
    await listener.open()
    ids = Ids()

    async def heard() -> None:
        while not await listener.wait(0.2):
            await until_it_answers(lambda: teller.apply([enqueue_change(ids, make_run(ids))]))

    async with asyncio.timeout(20):
        await heard()
    own.kill()
    own.start()
    async with asyncio.timeout(20):
        await heard()  # that something may have been missed, or what was told
        while await listener.wait(0):
            pass
        await heard()
    await teller.close()
    await listener.close()


@pytest.mark.tampers
@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_behind_a_sentinel_the_store_goes_on_with_the_new_primary(kind: str) -> None:
    group = skipping(lambda: Sentineled("valkey" if kind == "valkey" else "redis"))
    try:
        ms = Mainspring(group.url, poll_interval="100ms", lease_ttl="3s")
        done: list[int] = []

        @ms.task
        async def note(number: int) -> int:
            done.append(number)
            return number

        async with ms.running():
            before = await note.enqueue(1)
            assert await before.result(timeout="20s") == 1
            first = group.primary_port()
            await ms.call(lambda runtime: runtime.store._db.read(("WAIT", 1, 5_000)))  # type: ignore[attr-defined]
            group.primary.kill()
            after = await until_it_answers(lambda: note.enqueue(2), 60.0)
            assert await after.result(timeout="40s") == 2
            assert group.primary_port() != first
            runs = await ms.call(lambda runtime: runtime.store.find(Runs()))
            assert {run.id for run in runs} == {before.id, after.id}
            report = await ms.call(lambda runtime: verify(runtime.store))
        assert report.ok
        assert done == [1, 2]
    finally:
        group.remove()


@pytest.mark.parametrize("url", [server_url, tls_url], ids=["plain", "tls"])
def test_who_goes_while_it_begins_to_listen_leaves_no_socket(url: Callable[[], str]) -> None:
    """TLS takes its time to say good-bye, and the driver does not wait for it when a call is given up."""

    async def visit(seconds: float) -> None:
        store = RedisStore(fresh_url(url()))
        await store.open()
        await store.wait(seconds)
        await store.close()

    for seconds in (0.0005, 0.001, 0.003, 0.01, 0.05) * 2:
        asyncio.run(visit(seconds))
        gc.collect()  # what was left is told now, as an error
