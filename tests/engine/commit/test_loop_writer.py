"""Runs that go from the caller's loop straight to the server: opened when it pays, closed with its loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from mainspring import Mainspring
from mainspring.app.internals import host_of, runtime_of
from mainspring.backends.postgres import PostgresStore
from mainspring.engine.commit import loop_writer as direct
from mainspring.engine.commit.batcher import Batcher
from mainspring.engine.commit.loop_writer import LoopWriter
from mainspring.engine.commit.submitter import ThreadsafeSubmitter
from mainspring.model.errors import StoreUnavailable
from servers.for_tests import database_url, fresh_url

NAME = "mainspring-direct"
#: The first opens the store, by another way.
FIRST = direct.CONNECT_AFTER_CHANGES + 1


def an_app(url: str = "") -> Mainspring:
    ms = Mainspring(url or fresh_url(application_name=NAME))

    @ms.task(name="nothing")
    def nothing() -> None: ...

    return ms


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url())
    try:
        yield connection
    finally:
        await connection.close()


async def connections(connection: asyncpg.Connection) -> int:
    return int(await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", NAME))


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every change that crossed to the engine's loop."""
    seen: list[object] = []
    original = ThreadsafeSubmitter.apply

    async def apply(self: ThreadsafeSubmitter, change: object) -> object:
        seen.append(change)
        return await original(self, change)  # type: ignore[arg-type]  # any change passes

    monkeypatch.setattr(ThreadsafeSubmitter, "apply", apply)
    return seen


async def often(ms: Mainspring, some: int = 3) -> None:
    """Enqueue until the door is open, then some more."""
    task = ms.tasks["nothing"]
    for _ in range(FIRST):
        await task.enqueue()
    assert host_of(ms).runtime is not None
    assert isinstance(runtime_of(ms).caller_writer, LoopWriter)
    door = runtime_of(ms).caller_writer._connections[asyncio.get_running_loop()]
    if door.opening is not None:
        await door.opening
    for _ in range(some):
        await task.enqueue()


async def test_a_loop_that_enqueues_often_gets_a_connection_of_its_own(crossed: list[object]) -> None:
    ms = an_app()
    await often(ms, 5)
    assert len(crossed) == direct.CONNECT_AFTER_CHANGES
    assert len(await ms.runs(limit=100)) == FIRST + 5
    await asyncio.gather(*(ms.tasks["nothing"].enqueue() for _ in range(40)))
    assert len(await ms.runs(limit=100)) == FIRST + 45
    assert len(crossed) == direct.CONNECT_AFTER_CHANGES
    await ms.close()


async def test_a_loop_that_enqueues_rarely_gets_no_connection(crossed: list[object]) -> None:
    ms = an_app()
    for _ in range(3):
        await ms.tasks["nothing"].enqueue()
    assert len(crossed) == 2
    assert host_of(ms).runtime is not None
    assert isinstance(runtime_of(ms).caller_writer, LoopWriter)
    assert [door.batcher for door in runtime_of(ms).caller_writer._connections.values()] == [None]
    await ms.close()


async def test_a_unique_run_is_found_by_this_way_too() -> None:
    ms = an_app()
    await often(ms)
    first = await ms.tasks["nothing"].using(unique="one").enqueue()
    second = await ms.tasks["nothing"].using(unique="one").enqueue()
    assert (first.created, second.created, second.id) == (True, False, first.id)
    await ms.close()


async def test_with_a_worker_here_a_claim_rides_along_instead(crossed: list[object]) -> None:
    ms = an_app()
    async with ms.running():
        for _ in range(direct.CONNECT_AFTER_CHANGES + 5):
            run = await ms.tasks["nothing"].enqueue()
        await run.result(timeout="10s")
    assert len(crossed) >= direct.CONNECT_AFTER_CHANGES + 4
    await ms.close()


async def test_close_leaves_no_connection_and_the_next_call_opens_again() -> None:
    ms = an_app()
    await often(ms)
    async with server() as connection:
        assert await connections(connection) >= 2
        await ms.close()
        async with asyncio.timeout(10):
            while await connections(connection):  # noqa: ASYNC110 - the server sends no event when a connection ends
                await asyncio.sleep(0.01)
    await often(ms)
    assert len(await ms.runs(limit=100)) == 2 * (FIRST + 3)
    await ms.close()


def test_a_loop_that_ends_takes_its_connection_along() -> None:
    ms = an_app()

    def own() -> int:
        """The engine's connections, as it knows them."""
        assert host_of(ms).runtime is not None
        pool = runtime_of(ms).store._db._pool  # type: ignore[attr-defined]  # a PostgresStore has one
        return int(pool.size)

    async def settled() -> None:
        """Those that were closed are gone at the server, too, and no others are left."""
        async with server() as connection, asyncio.timeout(10):
            while await connections(connection) > own():  # noqa: ASYNC110 - the server sends no event
                await asyncio.sleep(0.01)

    for _ in range(2):
        asyncio.run(often(ms))
        asyncio.run(settled())
    assert host_of(ms).runtime is not None
    assert isinstance(runtime_of(ms).caller_writer, LoopWriter)
    assert runtime_of(ms).caller_writer._connections == {}
    asyncio.run(ms.close())


async def test_a_cut_connection_is_reported_or_replaced_and_no_run_is_doubled() -> None:
    ms = an_app()
    await often(ms)
    async with server() as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", NAME
        )
    stored = FIRST + 3
    for _ in range(5):
        with contextlib.suppress(StoreUnavailable):
            await ms.tasks["nothing"].enqueue()
            stored += 1
    assert len(await ms.runs(limit=100)) == stored
    await ms.close()


async def test_chunks_of_a_bulk_are_under_way_together_and_none_is_lost_or_doubled() -> None:
    ms = an_app()
    await ms.tasks["nothing"].enqueue()
    async with server() as connection:
        handles = await ms.tasks["nothing"].enqueue_many([()] * 4_500)
        assert await connections(connection) >= 2
    assert len({handle.id for handle in handles}) == 4_500
    events = await host_of(ms).call(lambda runtime: runtime.store.tail(0, 10_000))
    assert len({event.run_id for event in events}) == 4_501
    assert len({event.change for event in events}) == 6
    await ms.close()


async def test_a_loop_that_ends_while_its_last_change_is_committed_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task that closes the connection may be cancelled while it flushes the batcher."""
    ms = an_app()
    await often(ms)
    stores = watch_closed_stores(monkeypatch)
    writer = runtime_of(ms).caller_writer
    assert isinstance(writer, LoopWriter)
    flushing = asyncio.Event()

    async def hang(self: Batcher) -> None:
        flushing.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(Batcher, "flush", hang)
        closing = asyncio.create_task(writer.close())
        await flushing.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert len(stores) == 1
    await ms.close()


def watch_closed_stores(monkeypatch: pytest.MonkeyPatch) -> list[PostgresStore]:
    """Return a list that receives each store when it has been closed."""
    closed: list[PostgresStore] = []
    close = PostgresStore.close

    async def watched(self: PostgresStore) -> None:
        await close(self)
        closed.append(self)

    monkeypatch.setattr(PostgresStore, "close", watched)
    return closed


async def test_a_close_that_is_cancelled_while_connections_of_callers_close_still_closes_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ms = an_app()
    await often(ms)
    store = runtime_of(ms).store
    stores = watch_closed_stores(monkeypatch)
    hanging = asyncio.Event()

    async def hang(self: LoopWriter) -> None:
        hanging.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(LoopWriter, "close", hang)
        writer = runtime_of(ms).caller_writer
        closing = asyncio.create_task(ms.close())
        await hanging.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert stores == [store]
    assert isinstance(writer, LoopWriter)
    await writer.close()
    await ms.close()
