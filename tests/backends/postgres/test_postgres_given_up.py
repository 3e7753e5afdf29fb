"""A call that is cancelled while it opens a connection leaves neither a socket nor a lock behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import asyncpg
import pytest

from mainspring.backends.postgres import PostgresStore
from mainspring.backends.postgres.database import Connection, Database
from servers.for_tests import fresh_url


class Watch:
    """Records the connections that are opened, and makes one of their methods hang or fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.opened: list[Any] = []
        self.begun = asyncio.Event()
        connect = Database.connect

        async def watched(*given: Any, **options: Any) -> Any:
            self.opened.append(await connect(*given, **options))
            return self.opened[-1]

        patch.setattr(Database, "connect", watched)

    def hang(self, verb: str) -> None:
        async def stuck(*_: object, **__: object) -> None:
            self.begun.set()
            await asyncio.Event().wait()

        self._patch.setattr(Connection, verb, stuck)

    def fail(self, verb: str) -> None:
        async def broken(*_: object, **__: object) -> None:
            raise asyncpg.ConnectionDoesNotExistError("gone")

        self._patch.setattr(Connection, verb, broken)

    async def give_up(self, work: Coroutine[Any, Any, Any]) -> None:
        """Cancel the call where it hangs."""
        task = asyncio.ensure_future(work)
        await self.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    @property
    def left(self) -> list[bool]:
        return [not one.is_closed() for one in self.opened]


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(fresh_url())
    await store.open()
    yield store
    await store.close()


async def test_a_wait_cancelled_during_listen_leaves_no_connection(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    watch.hang("add_listener")
    await watch.give_up(store.wait(5))
    assert watch.left == [False]


async def test_a_failed_listen_leaves_no_connection(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    watch.fail("add_listener")
    assert not await store.wait(0)
    assert watch.left == [False]


async def test_a_listen_that_ends_after_close_leaves_no_connection(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    listen, go = Connection.add_listener, asyncio.Event()

    async def slow(self: Any, *given: Any) -> None:
        watch.begun.set()
        await go.wait()
        await listen(self, *given)

    monkeypatch.setattr(Connection, "add_listener", slow)
    waiting = asyncio.create_task(store.wait(0.01))
    await watch.begun.wait()
    await store.close()
    go.set()
    assert not await waiting
    assert watch.left == [False]
    assert not await store.wait(0)  # a closed store does not listen
    assert len(watch.opened) == 1


async def test_taking_an_advisory_lock_when_cancelled_leaves_no_connection(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    locks = store.advisory()
    locks._looks_free = _free  # type: ignore[method-assign]  # the first try goes through the pool, which must work
    watch.hang("fetchval")
    await watch.give_up(locks.acquire("one", "me", 5_000))
    assert watch.left == [False]


async def _free(_: str) -> bool:
    return True


async def test_opening_cancelled_at_its_last_query_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    first = PostgresStore(fresh_url())
    watch = Watch(monkeypatch)
    watch.hang("fetchval")
    await watch.give_up(first.open())
    assert len(watch.opened) == 2  # one to look at the schema, one of the pool
    assert watch.left == [False, False]


async def test_closing_when_cancelled_cuts_connections_in_use(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    held = await store._db._require_pool().acquire(5)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert held.is_closed()
    assert not any(watch.left)
