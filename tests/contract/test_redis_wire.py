"""A connection to the server: an answer goes to who asked, silence ends, what broke is not used again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis import exceptions

from mainspring.model.errors import StoreUnavailable
from mainspring.ports.store import Runs
from mainspring.stores.redis import RedisStore
from mainspring.stores.redis.route import Route, connect
from mainspring.stores.redis.settings import read_url
from mainspring.stores.redis.wire import Wire
from servers.for_tests_redis import fresh_url, server_url, skipping
from servers.redis import RedisServer


async def wired(timeout: float = 5.0) -> Wire:
    settings = read_url(server_url("valkey"))
    connection = Route(settings).connection(settings.hosts[0])
    await connect(connection)
    return Wire(connection, timeout)


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    wire = await wired()
    yield wire
    wire.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    server = skipping(lambda: RedisServer(fsync=None).start())
    yield server
    server.remove()


async def test_answers_come_in_the_order_of_the_questions_and_errors_are_answers(wire: Wire) -> None:
    big = b"x" * 300_000
    one, wrong, unknown, two = await wire.ask(
        [("ECHO", big), ("EVALSHA", "0" * 40, 0), ("NONSENSE",), ("ECHO", "zwei")]
    )
    assert (one, two) == (big, b"zwei")
    assert isinstance(wrong, exceptions.NoScriptError)
    assert isinstance(unknown, exceptions.ResponseError)
    assert await wire.ask([("ECHO", "drei")]) == [b"drei"]


async def test_a_closed_wire_says_so() -> None:
    wire = await wired()
    waiting = asyncio.create_task(wire.ask([("BLPOP", "nobody pushes", 0)]))
    await asyncio.sleep(0)
    wire.close()
    with pytest.raises(exceptions.ConnectionError):
        await waiting
    with pytest.raises(exceptions.ConnectionError):
        await wire.ask([("PING",)])


async def test_silence_ends_and_the_time_is_that_of_the_last_question() -> None:
    wire = await wired(0.3)
    try:
        assert await wire.ask([("PING",)]) == [b"PONG"]
        assert wire._timer is not None
        first = wire._timer
        assert await wire.ask([("PING",)]) == [b"PONG"]
        assert wire._timer is first, "one timer serves many calls"
        with pytest.raises(exceptions.TimeoutError, match=r"no answer within 0\.3 s"):
            await wire.ask([("BLPOP", "nobody pushes", 0)])
    finally:
        wire.close()


async def test_who_gives_up_takes_the_connection_along_and_nobody_hears_a_foreign_answer() -> None:
    store = RedisStore(fresh_url(server_url("valkey"), pool=1))
    await store.open()
    try:
        for _ in range(20):
            asking = asyncio.create_task(store._db.read(("ECHO", "late")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert await store._db.read(("ECHO", "mine")) == [b"mine"]
        answers = await asyncio.gather(*(store._db.read(("ECHO", str(i))) for i in range(50)))
        assert [answer[0].decode() for answer in answers] == [str(i) for i in range(50)]
    finally:
        await store.close()


async def test_a_server_that_stops_is_told_in_time_and_used_when_it_goes_on(own_server: RedisServer) -> None:
    store = RedisStore(f"{own_server.url}?prefix=stops&timeout=300ms")
    await store.open()
    try:
        assert await store.find(Runs()) == []
        own_server.pause()
        with pytest.raises(StoreUnavailable):
            await store.find(Runs())
        own_server.resume()
        assert await store.find(Runs()) == []
    finally:
        own_server.resume()
        await store.close()
