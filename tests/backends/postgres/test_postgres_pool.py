"""The connection pool without a server: waiting, order of waiters, and connections that are dropped."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.backends.postgres import pool as pools
from mainspring.backends.postgres.pool import Pool


class Line:
    def __init__(self) -> None:
        self.closed = False

    def is_closed(self) -> bool:
        return self.closed

    async def close(self) -> None:
        self.closed = True

    def terminate(self) -> None:
        self.closed = True


class Server:
    """Makes connections; may refuse some, or keep a caller waiting."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.refuses = 0
        self.gate: asyncio.Event | None = None

    async def connect(self) -> Line:
        if self.gate is not None:
            await self.gate.wait()
        if self.refuses:
            self.refuses -= 1
            raise ConnectionRefusedError
        self.lines.append(Line())
        return self.lines[-1]


@pytest.fixture
def server() -> Server:
    return Server()


async def test_the_connection_used_last_is_used_next(server: Server) -> None:
    pool = Pool(server.connect, 3)
    one, two = await pool.acquire(1), await pool.acquire(1)
    pool.release(one)
    pool.release(two)
    assert await pool.acquire(1) is two
    assert (len(server.lines), pool.size) == (2, 2)


async def test_callers_beyond_the_size_wait_and_are_served_in_order(server: Server) -> None:
    pool = Pool(server.connect, 1)
    held = await pool.acquire(1)
    order: list[int] = []

    async def ask(number: int) -> None:
        got = await pool.acquire(5)
        order.append(number)
        await asyncio.sleep(0)
        pool.release(got)

    asked = [asyncio.create_task(ask(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert order == []
    pool.release(held)
    await asyncio.gather(*asked)
    assert order == [0, 1, 2, 3, 4]
    assert (len(server.lines), pool.size) == (1, 1)


async def test_acquire_times_out(server: Server) -> None:
    pool = Pool(server.connect, 1)
    held = await pool.acquire(1)
    with pytest.raises(TimeoutError):
        await pool.acquire(0.01)
    pool.release(held)
    assert await pool.acquire(1) is held


async def test_the_turn_of_a_cancelled_waiter_goes_to_the_next(server: Server) -> None:
    pool = Pool(server.connect, 1)
    held = await pool.acquire(1)
    first, second = asyncio.create_task(pool.acquire(5)), asyncio.create_task(pool.acquire(5))
    await asyncio.sleep(0)
    pool.release(held)  # it is the first one's turn
    first.cancel()
    assert await second is held


async def test_a_closed_connection_is_not_reused_and_makes_room_for_a_new_one(server: Server) -> None:
    pool = Pool(server.connect, 1)
    held = await pool.acquire(1)
    waiting = asyncio.create_task(pool.acquire(5))
    await asyncio.sleep(0)
    held.terminate()
    pool.release(held)
    assert await waiting is server.lines[1]
    server.lines[1].closed = True
    pool.release(server.lines[1])
    assert await pool.acquire(1) is server.lines[2]
    assert pool.size == 1


async def test_a_waiter_connects_after_another_failed_to_connect(server: Server) -> None:
    pool = Pool(server.connect, 1)
    server.refuses, server.gate = 1, asyncio.Event()
    first, second = asyncio.create_task(pool.acquire(5)), asyncio.create_task(pool.acquire(5))
    await asyncio.sleep(0)
    server.gate.set()
    with pytest.raises(ConnectionRefusedError):
        await first
    assert await second is server.lines[0]


async def test_a_connection_unused_for_long_is_replaced(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(server.connect, 2)
    pool.release(await pool.acquire(1))
    monkeypatch.setattr(pools, "MAX_IDLE_SECONDS", -1.0)
    assert await pool.acquire(1) is server.lines[1]
    assert server.lines[0].closed


async def test_closing_waits_for_connections_in_use(server: Server) -> None:
    pool = Pool(server.connect, 2)
    held = await pool.acquire(1)
    pool.release(await pool.acquire(1))
    closing = asyncio.create_task(pool.close())
    await asyncio.sleep(0)
    assert not closing.done()
    pool.release(held)
    await closing
    assert all(line.closed for line in server.lines)
    assert pool.size == 0


async def test_a_connection_released_after_terminate_is_cut(server: Server) -> None:
    pool = Pool(server.connect, 2)
    held = await pool.acquire(1)
    pool.terminate()
    pool.release(held)
    assert held.closed
    assert pool.size == 0


async def test_a_connection_opened_during_terminate_is_cut(server: Server) -> None:
    pool = Pool(server.connect, 1)
    server.gate = asyncio.Event()
    opening = asyncio.create_task(pool.acquire(5))
    await asyncio.sleep(0)
    pool.terminate()
    server.gate.set()
    with pytest.raises(ConnectionAbortedError, match="closed meanwhile"):
        await opening
    assert [line.closed for line in server.lines] == [True]


async def test_waiting_callers_get_an_error_at_terminate(server: Server) -> None:
    pool = Pool(server.connect, 1)
    held = await pool.acquire(1)
    waiting = [asyncio.create_task(pool.acquire(5)) for _ in range(3)]
    await asyncio.sleep(0)
    pool.terminate()
    for one in waiting:
        with pytest.raises(ConnectionAbortedError):
            await one
    pool.release(held)
    assert len(server.lines) == 1
