"""Connections to the server: answers reach their own caller, missing ones time out, broken ones are not reused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis import exceptions

from mainspring.backends.redis import RedisStore
from mainspring.backends.redis.connection import RawConnection
from mainspring.backends.redis.discovery import Discovery, connect
from mainspring.backends.redis.settings import read_url
from mainspring.model.errors import StoreUnavailable
from mainspring.ports.store import Runs
from servers.for_tests_redis import fresh_url, server_url, skipping
from servers.redis import RedisServer


async def open_connection(timeout: float = 5.0) -> RawConnection:
    settings = read_url(server_url("valkey"))
    connection = Discovery(settings).create_connection(settings.hosts[0])
    await connect(connection)
    return RawConnection(connection, timeout)


@pytest.fixture
async def connection() -> AsyncIterator[RawConnection]:
    connection = await open_connection()
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    server = skipping(lambda: RedisServer(fsync=None).start())
    yield server
    server.remove()


async def test_answers_come_in_the_order_of_the_commands_and_errors_are_answers(connection: RawConnection) -> None:
    big = b"x" * 300_000
    one, wrong, unknown, two = await connection.execute(
        [("ECHO", big), ("EVALSHA", "0" * 40, 0), ("NONSENSE",), ("ECHO", "two")]
    )
    assert (one, two) == (big, b"two")
    assert isinstance(wrong, exceptions.NoScriptError)
    assert isinstance(unknown, exceptions.ResponseError)
    assert await connection.execute([("ECHO", "three")]) == [b"three"]


async def test_a_closed_connection_raises() -> None:
    connection = await open_connection()
    waiting = asyncio.create_task(connection.execute([("BLPOP", "empty list", 0)]))
    await asyncio.sleep(0)
    connection.close()
    with pytest.raises(exceptions.ConnectionError):
        await waiting
    with pytest.raises(exceptions.ConnectionError):
        await connection.execute([("PING",)])


async def test_a_missing_answer_times_out_and_one_timer_serves_many_calls() -> None:
    connection = await open_connection(0.3)
    try:
        assert await connection.execute([("PING",)]) == [b"PONG"]
        assert connection._timer is not None
        first = connection._timer
        assert await connection.execute([("PING",)]) == [b"PONG"]
        assert connection._timer is first, "one timer serves many calls"
        with pytest.raises(exceptions.TimeoutError, match=r"no answer within 0\.3 s"):
            await connection.execute([("BLPOP", "empty list", 0)])
    finally:
        connection.close()


async def test_a_cancelled_call_discards_its_connection_so_no_other_call_gets_its_answer() -> None:
    store = RedisStore(fresh_url(server_url("valkey"), pool=1))
    await store.open()
    try:
        for _ in range(20):
            asking = asyncio.create_task(store._db.run_commands(("ECHO", "late")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert await store._db.run_commands(("ECHO", "mine")) == [b"mine"]
        answers = await asyncio.gather(*(store._db.run_commands(("ECHO", str(i))) for i in range(50)))
        assert [answer[0].decode() for answer in answers] == [str(i) for i in range(50)]
    finally:
        await store.close()


async def test_a_stopped_server_is_reported_in_time_and_used_again_when_it_resumes(own_server: RedisServer) -> None:
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
