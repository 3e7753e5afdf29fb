"""Whoever opens a connection and gives up in the middle leaves none behind: no socket, and no lock on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import asyncpg
import pytest

from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import Connection, Database
from servers.for_tests import fresh_url


class Watch:
    """The connections that were opened, and a verb of theirs that never ends once it has begun."""

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
        """Cancel it where it hangs."""
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


async def test_listening_given_up_while_it_begins(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    watch.hang("add_listener")
    await watch.give_up(store.wait(5))
    assert watch.left == [False]


async def test_listening_that_failed(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    watch.fail("add_listener")
    assert not await store.wait(0)
    assert watch.left == [False]


async def test_listening_that_began_while_the_store_closed(
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
    assert not await store.wait(0)  # nobody listens for a closed store
    assert len(watch.opened) == 1


async def test_an_advisory_lock_given_up_while_it_is_asked_for(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    locks = store.advisory()
    locks._looks_free = _free  # type: ignore[method-assign]  # the look goes through the pool, which is to work
    watch.hang("fetchval")
    await watch.give_up(locks.take("one", "me", 5_000))
    assert watch.left == [False]


async def _free(_: str) -> bool:
    return True


async def test_opening_given_up_at_its_last_question(monkeypatch: pytest.MonkeyPatch) -> None:
    first = PostgresStore(fresh_url())
    watch = Watch(monkeypatch)
    watch.hang("fetchval")
    await watch.give_up(first.open())
    assert len(watch.opened) == 2  # one to look at the schema, one of the pool
    assert watch.left == [False, False]


async def test_closing_given_up(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    held = await store._db._usable().acquire(5)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert held.is_closed()
    assert not any(watch.left)
