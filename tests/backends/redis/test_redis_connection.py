"""Connections under stress: cancelled callers, lost scripts, lost answers, a restart, a failover."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from mainspring import Mainspring
from mainspring.app.internals import host_of
from mainspring.backends.redis import RedisStore
from mainspring.ledger.verify import verify
from mainspring.model.errors import StoreUnavailable
from mainspring.ports.store import Runs
from mainspring.testing.contract.factories import Ids, enqueue_change, make_run
from servers.for_tests_redis import fresh_url, server_url, skipping, tls_url
from servers.proxy import Proxy
from servers.redis import RedisServer, Sentineled

T = TypeVar("T")


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server of the test's own that may be killed; acknowledged writes are on its disk."""
    one = skipping(lambda: RedisServer(fsync="always").start())
    yield one
    one.remove()


async def retry_until_available(ask: Callable[[], Awaitable[T]], patience: float = 30.0) -> T:
    """Return the answer of `ask`, called again while the store is unavailable."""
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
            pool.invalidate()  # so that some calls are cancelled while they connect
        call = asyncio.ensure_future(store.lease(f"n{number}", f"i{number}", 1_000))
        for _ in range(rng.randrange(25)):
            await asyncio.sleep(0)
        if call.cancel():
            cancelled += 1
            with pytest.raises(asyncio.CancelledError):
                await call
        lease = await store.lease(f"m{number}", "me", 1_000)
        assert lease is not None
        assert lease.name == f"m{number}"  # not the answer to another call
    assert cancelled > 100
    await store.close()


async def test_scripts_are_sent_again_to_a_server_that_lost_them() -> None:
    store, ids = RedisStore(fresh_url()), Ids()
    await store.open()
    for _ in range(3):
        (flushed,) = await store._db.run_commands(("SCRIPT", "FLUSH"))
        assert flushed == b"OK"
        assert (await store.apply([enqueue_change(ids, make_run(ids))])).results[0].status == "accepted"
    assert len(await store.find(Runs())) == 3
    await store.close()


@pytest.mark.tampers  # its proxy is closed when the test ends
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


@pytest.mark.tampers  # its server is removed when the test ends
async def test_a_killed_server_comes_back_with_every_acknowledged_write(own_server: RedisServer) -> None:
    store, ids = RedisStore(own_server.url), Ids()
    await store.open()
    stored = 0
    for _ in range(3):
        for _ in range(5):
            assert (await store.apply([enqueue_change(ids, make_run(ids))])).results[0].ok
            stored += 1
        own_server.kill()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await store.find(Runs())
        own_server.start()
        assert len(await retry_until_available(lambda: store.find(Runs()))) == stored
    assert (await verify(store)).ok
    await store.close()


@pytest.mark.tampers
async def test_hints_are_received_again_after_a_restart(own_server: RedisServer) -> None:
    sender, listener = RedisStore(own_server.url), RedisStore(own_server.url)
    await sender.open()
    await listener.open()
    ids = Ids()

    async def heard() -> None:
        while not await listener.wait(0.2):
            await retry_until_available(lambda: sender.apply([enqueue_change(ids, make_run(ids))]))

    async with asyncio.timeout(20):
        await heard()
    own_server.kill()
    own_server.start()
    async with asyncio.timeout(20):
        await heard()  # the warning that hints may have been missed, or a hint
        while await listener.wait(0):
            pass
        await heard()
    await sender.close()
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
            await host_of(ms).call(lambda runtime: runtime.store._db.run_commands(("WAIT", 1, 5_000)))  # type: ignore[attr-defined]
            group.primary.kill()
            after = await retry_until_available(lambda: note.enqueue(2), 60.0)
            assert await after.result(timeout="40s") == 2
            assert group.primary_port() != first
            runs = await host_of(ms).call(lambda runtime: runtime.store.find(Runs()))
            assert {run.id for run in runs} == {before.id, after.id}
            report = await host_of(ms).call(lambda runtime: verify(runtime.store))
        assert report.ok
        assert done == [1, 2]
    finally:
        group.remove()


@pytest.mark.parametrize("url", [server_url, tls_url], ids=["plain", "tls"])
def test_closing_while_the_subscription_starts_leaves_no_socket(url: Callable[[], str]) -> None:
    """A TLS socket closes in several steps, which the driver does not wait for when a call is cancelled."""

    async def visit(seconds: float) -> None:
        store = RedisStore(fresh_url(url()))
        await store.open()
        await store.wait(seconds)
        await store.close()

    for seconds in (0.0005, 0.001, 0.003, 0.01, 0.05) * 2:
        asyncio.run(visit(seconds))
        gc.collect()  # a socket left open is reported now, as an error
