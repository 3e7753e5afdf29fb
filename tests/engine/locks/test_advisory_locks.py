"""PostgreSQL's own locks as a kind of lock: what they do, and what they do not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from mainspring import InvalidInput, LockLost, LockTaken, Mainspring
from mainspring.backends.postgres import PostgresStore
from servers.for_tests import database_url, fresh_url


@pytest.fixture
def pair() -> Iterator[tuple[Mainspring, Mainspring]]:
    url = fresh_url()
    apps = Mainspring(url), Mainspring(url)
    yield apps
    for app in apps:
        app.sync.close()


async def test_one_holder_in_all_processes_and_a_token_that_grows(pair: tuple[Mainspring, Mainspring]) -> None:
    tokens = []
    for _ in range(2):
        for app, other in (pair, pair[::-1]):
            async with app.lock("x", kind="advisory") as guard:
                tokens.append(guard.token)
                with pytest.raises(LockTaken, match="held by"):
                    async with other.lock("x", kind="advisory", wait=False):
                        pass
                async with other.lock("y", kind="advisory", wait=False):
                    pass
    assert tokens == [1, 2, 3, 4]


async def test_the_next_one_gets_it_when_the_block_ends(pair: tuple[Mainspring, Mainspring]) -> None:
    async def wait_for_it() -> int:
        async with pair[1].lock("x", kind="advisory", wait="60s") as guard:
            return guard.token

    async with pair[0].lock("x", kind="advisory"):
        waiting = asyncio.create_task(wait_for_it())
        await asyncio.sleep(0)
    assert await waiting == 2


async def test_the_lock_is_the_connections_and_is_lost_with_it(pair: tuple[Mainspring, Mainspring]) -> None:
    with pytest.raises(LockLost):
        async with pair[0].lock("x", ttl="1s", kind="advisory") as guard:
            assert await _backends("SELECT pg_terminate_backend(pid)") == [True]
            await guard.lost.wait()
            await asyncio.Event().wait()
    async with pair[1].lock("x", kind="advisory", wait="60s") as guard:
        assert guard.token == 2


async def test_no_connection_is_left_behind(pair: tuple[Mainspring, Mainspring]) -> None:
    async with pair[0].lock("x", kind="advisory"):
        assert len(await _backends("SELECT pid")) == 1
    for _ in range(1_000):  # the server notices in its own time
        if not await _backends("SELECT pid"):
            break
    assert not await _backends("SELECT pid")


async def test_the_kinds_know_nothing_of_each_other(pair: tuple[Mainspring, Mainspring]) -> None:
    async with pair[0].lock("x", kind="advisory", wait=False), pair[1].lock("x", wait=False) as guard:
        assert guard.token == 1


def test_behind_a_pooler_it_asks_for_a_direct_address() -> None:
    store = PostgresStore("postgresql://nobody@localhost/x?pooler=true")
    with pytest.raises(InvalidInput, match="kind: an advisory lock needs a direct connection"):
        store.advisory()
    assert PostgresStore("postgresql://nobody@localhost/x?pooler=true&listen=localhost:5432").advisory() is not None


async def _backends(what: str) -> list[Any]:
    """Of the sessions that hold an advisory lock of the test's database."""
    connection = await asyncpg.connect(database_url())
    try:
        query = f"""{what} FROM pg_locks WHERE locktype = 'advisory' AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
        return [row[0] for row in await connection.fetch(query)]
    finally:
        await connection.close()
