"""Enqueue inside the caller's own transaction on PostgreSQL: the run exists if and only if the caller commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import asyncpg
import psycopg
import pytest

from mainspring import Mainspring
from mainspring.backends.postgres import PostgresStore
from mainspring.backends.postgres import transactional_sql as joining_sql
from mainspring.model.errors import InvalidInput, SchemaMismatch, StoreDenied, SyncOnLoop, UnknownRun
from mainspring.model.events import RunScheduled
from mainspring.model.run import State
from mainspring.ports.store import Bodies, Gates
from mainspring.testing.contract.factories import Ids, enqueue_change, make_run
from servers.for_tests import fresh_url
from tests.stored_rows import stored
from tests.system.callers import (
    AWAITED,
    BLOCKING,
    Caller,
    asyncpg_connection,
    dsn,
    psycopg_connection,
    sqlalchemy_connection,
)

Blocking = Callable[[str], AbstractContextManager[Caller]]
Awaited = Callable[[str], AbstractAsyncContextManager[Caller]]
blocking = pytest.mark.parametrize("driver", BLOCKING)
awaited = pytest.mark.parametrize("driver", AWAITED)


class Undone(Exception):
    """Raised to roll back a savepoint."""


class Shop:
    """An app, its store, and the calls of its handler."""

    def __init__(self) -> None:
        self.url = fresh_url(pool=2)
        self.ms = Mainspring(self.url)
        self.did: list[str] = []

        @self.ms.task(limit=3)
        async def send(customer: str, copies: int = 1) -> str:
            self.did.append(customer)
            return customer

        self.send = send
        self.orders = f"orders_{self.ms.url.rpartition('schema=')[2].partition('&')[0]}"


@pytest.fixture
def shop() -> Any:
    return Shop()


@pytest.fixture(scope="module")
def shared() -> Iterator[Shop]:
    """One app for all tests that leave no rows behind."""
    shop = Shop()
    yield shop
    shop.ms.sync.close()


@pytest.fixture
async def open_shop(shop: Shop) -> AsyncIterator[Shop]:
    yield shop
    await shop.ms.close()


@blocking
def test_a_blocking_driver_commits_and_rolls_back(shop: Shop, driver: Blocking) -> None:
    ms, send = shop.ms, shop.send
    with driver(shop.url) as caller:
        caller.begin()
        gone = send.sync.enqueue("never", connection=caller.connection)
        caller.rollback()

        caller.begin()
        caller.execute(f"CREATE TABLE {shop.orders} (customer text)")
        run = send.sync.enqueue("acme", copies=2, connection=caller.connection)
        with pytest.raises(Undone), caller.savepoint():
            send.sync.enqueue("taken back", connection=caller.connection)
            raise Undone
        first = send.using(unique="k").sync.enqueue("first", connection=caller.connection)
        again = send.using(unique="k", connection=caller.connection).sync.enqueue("again")
        many = send.sync.enqueue_many([("b",), {"customer": "c"}], connection=caller.connection)
        assert (first.created, again.created, again.id) == (True, False, first.id)
        with pytest.raises(UnknownRun):
            run.run()
        caller.commit()

        ms.run(until_idle=True)
        assert sorted(shop.did) == ["acme", "b", "c", "first"]
        assert [handle.result() for handle in (run, *many)] == ["acme", "b", "c"]
        with pytest.raises(UnknownRun):
            gone.run()
        caller.begin()
        caller.execute(f"INSERT INTO {shop.orders} VALUES ('acme')")  # the caller's own work was kept, too
        caller.rollback()
    ms.sync.close()


@awaited
async def test_an_awaited_driver_commits_and_rolls_back(open_shop: Shop, driver: Awaited) -> None:
    shop = open_shop
    ms, send = shop.ms, shop.send
    async with driver(shop.url) as caller:
        await caller.begin()
        gone = await send.enqueue("never", connection=caller.connection)
        await caller.rollback()

        await caller.begin()
        await caller.execute(f"CREATE TABLE {shop.orders} (customer text)")
        run = await send.enqueue("acme", copies=2, connection=caller.connection)
        with pytest.raises(Undone):
            async with caller.savepoint():
                await send.enqueue("taken back", connection=caller.connection)
                raise Undone
        first = await send.using(unique="k").enqueue("first", connection=caller.connection)
        again = await send.using(unique="k", connection=caller.connection).enqueue("again")
        many = await send.enqueue_many([("b",), {"customer": "c"}], connection=caller.connection)
        assert (first.created, again.created, again.id) == (True, False, first.id)
        with pytest.raises(UnknownRun):
            await run.run()
        await caller.commit()

        await ms.run_async(until_idle=True, signals=False)
        assert sorted(shop.did) == ["acme", "b", "c", "first"]
        assert [await handle.result() for handle in (run, *many)] == ["acme", "b", "c"]
        with pytest.raises(UnknownRun):
            await gone.run()
        await caller.begin()
        await caller.execute(f"INSERT INTO {shop.orders} VALUES ('acme')")
        await caller.rollback()


async def test_a_running_worker_is_woken_by_the_commit_and_not_before(open_shop: Shop) -> None:
    shop = open_shop
    async with shop.ms.running(), asyncpg_connection(shop.url) as caller:
        await caller.begin()
        run = await shop.send.enqueue("acme", connection=caller.connection)
        other = await shop.send.enqueue("globex")  # an ordinary one overtakes it
        assert await other.result(timeout="20s") == "globex"
        assert shop.did == ["globex"]
        await caller.commit()
        assert await run.result(timeout="20s") == "acme"
        event = (await shop.ms.events(run=run.id))[0]
        assert isinstance(event, RunScheduled)
        assert event.at == (await stored(shop.ms, run.run())).created_at


async def test_subscribers_receive_the_commit(open_shop: Shop) -> None:
    shop = open_shop
    listener = PostgresStore(shop.url)
    await listener.open()
    try:
        await listener.wait(0.01)
        async with asyncpg_connection(shop.url) as caller:
            await caller.begin()
            await shop.send.using(delay="1h").enqueue("never", connection=caller.connection)
            while await listener.wait(0.05):  # the gate was stored before, by a commit of its own
                pass
            await caller.commit()
            assert await listener.wait(30.0)
    finally:
        await listener.close()


async def test_without_a_transaction_the_run_is_written_at_once(shared: Shop) -> None:
    async with asyncpg_connection(shared.url) as caller:
        run = await shared.send.enqueue("acme", connection=caller.connection)
        assert await run.state() is State.WAITING


async def test_a_blocking_connection_works_in_a_coroutine_too(shared: Shop) -> None:
    with psycopg_connection(shared.url) as caller:
        run = await shared.send.enqueue("acme", connection=caller.connection)
        with pytest.raises(UnknownRun):
            await run.run()
        caller.commit()
        assert await run.state() is State.WAITING


# ── unique keys ─────────────────────────────────────────────────────────────


async def test_a_key_held_outside_returns_its_run_and_the_transaction_continues(open_shop: Shop) -> None:
    shop = open_shop
    unique = shop.send.using(unique="k")
    holder = await unique.enqueue("holder")
    async with asyncpg_connection(shop.url) as caller:
        await caller.begin()
        refused = await unique.enqueue("second", connection=caller.connection)
        many = await unique.enqueue_many([("x",), ("y",)], connection=caller.connection)
        other = await shop.send.enqueue("other", connection=caller.connection)
        await caller.commit()
    assert (refused.id, refused.created) == (holder.id, False)
    assert [(h.id, h.created) for h in many] == [(holder.id, False)] * 2
    assert other.created
    assert await other.state() is State.WAITING


async def test_an_enqueue_waits_for_the_transaction_that_took_its_key(open_shop: Shop) -> None:
    shop = open_shop
    unique = shop.send.using(unique="k")
    for created in (False, True):
        async with asyncpg_connection(shop.url) as one, asyncpg_connection(shop.url) as two:
            await one.begin()
            first = await unique.enqueue("first", connection=one.connection)
            await two.begin()
            waiting = asyncio.create_task(unique.enqueue("second", connection=two.connection))
            await _until_blocked(one.connection, two.connection)
            await (one.rollback() if created else one.commit())
            second = await waiting
            await two.commit()
        assert second.created is created
        assert (second.id == first.id) is not created
        await shop.ms.cancel(second.id)


async def test_under_repeatable_read_a_conflict_with_a_later_commit_is_an_error_of_the_driver(shared: Shop) -> None:
    unique = shared.send.using(unique="since")
    await shared.send.enqueue("first")  # the schema is there
    async with asyncpg_connection(shared.url) as caller:
        await caller.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await caller.execute("SELECT 1 FROM pg_class LIMIT 1")  # its view of the world begins here
        holder = await unique.enqueue("holder")
        with pytest.raises(asyncpg.SerializationError):
            await unique.enqueue("second", connection=caller.connection)
        await caller.execute("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ")
        again = await unique.enqueue("second", connection=caller.connection)
        await caller.execute("COMMIT")
    assert (again.id, again.created) == (holder.id, False)


async def _until_blocked(asking: Any, connection: Any) -> None:
    pid = connection.get_server_pid()
    while not await asking.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", pid):
        pass


# ── an open transaction blocks no other work ────────────────────────────────


async def test_a_transaction_blocks_neither_its_payload_nor_its_gate_for_others(open_shop: Shop) -> None:
    shop = open_shop
    async with asyncpg_connection(shop.url) as caller:
        await caller.begin()
        inside = await shop.send.enqueue("acme", connection=caller.connection)
        twice = await shop.send.enqueue_many([("acme",), ("acme",)], connection=caller.connection)
        async with shop.ms.running():
            outside = await shop.send.enqueue("acme")
            assert await outside.result(timeout="20s") == "acme"
            await caller.commit()
            assert await inside.result(timeout="20s") == "acme"
        bodies = {(await stored(shop.ms, handle.run())).body or "" for handle in (inside, outside, *twice)}
        assert len(bodies) == 3  # those of one call share theirs
        store = PostgresStore(shop.url)
        await store.open()
        found = await store.find(Bodies(ids=tuple(bodies)))
        (gate,) = await store.find(Gates())
        await store.close()
    assert {body.data for body in found} == {'{"k":{"customer":"acme"}}'}
    assert gate.max == 3


async def test_a_reader_of_the_log_misses_no_event_when_a_transaction_commits_late(open_shop: Shop) -> None:
    shop = open_shop
    store = PostgresStore(shop.url)
    await store.open()
    try:
        ids = Ids()
        own = [make_run(ids) for _ in range(4)]
        follower = store.open_cursor()
        async with asyncpg_connection(shop.url) as early, asyncpg_connection(shop.url) as late:
            await late.begin()
            held = [await shop.send.enqueue("late", connection=late.connection)]
            await early.begin()
            gone = await shop.send.enqueue("gone", connection=early.connection)
            seen = []
            for run in own[:3]:
                await store.apply([enqueue_change(ids, run)])
                held.append(await shop.send.enqueue("late", connection=late.connection))
                seen += await follower.read_events(100)
            assert [event.run_id for event in seen] == [run.id for run in own[:3]]
            assert follower.gaps
            await early.rollback()
            await late.commit()
            rest = await follower.read_events(100)
            assert [event.run_id for event in rest] == [handle.id for handle in held]
            assert gone.id not in {event.run_id for event in rest}
            await store.apply([enqueue_change(ids, own[3])])
            assert [event.run_id for event in await follower.read_events(100)] == [own[3].id]
            while follower.gaps:  # a number taken back is given up when all older transactions of the server are over
                assert await follower.read_events(100) == []
    finally:
        await store.close()


# ── what may be wrong ───────────────────────────────────────────────────────


@pytest.mark.parametrize("wrong", [7, "postgresql://", object()])
async def test_an_unknown_object_is_refused_with_what_is_accepted(shared: Shop, wrong: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"connection: .* Give an asyncpg connection, a psycopg 3 .*Django"
    ) as caught:
        await shared.send.enqueue("acme", connection=wrong)
    assert caught.value.field == "connection"


async def test_a_pool_is_no_connection(shared: Shop) -> None:
    async with asyncpg.create_pool(dsn(shared.url), min_size=0) as pool:
        with pytest.raises(InvalidInput, match=r"asyncpg\.pool\.Pool is not a connection"):
            await shared.send.enqueue("acme", connection=pool)


async def test_a_closed_connection_is_refused(shared: Shop) -> None:
    send = shared.send
    direct = await asyncpg.connect(dsn(shared.url))
    await direct.close()
    async with asyncpg.create_pool(dsn(shared.url), min_size=1) as pool:
        released = await pool.acquire()
        await pool.release(released)
        with psycopg_connection(shared.url) as caller:
            caller.connection.close()
            with sqlalchemy_connection(shared.url) as other:
                other.connection.close()
                for closed in (direct, released, caller.connection, other.connection):
                    with pytest.raises(InvalidInput, match="connection: it is closed"):
                        await send.enqueue("acme", connection=closed)


async def test_the_sync_interface_refuses_an_async_driver_and_a_running_loop(shared: Shop) -> None:
    send = shared.send
    async with asyncpg_connection(shared.url) as caller:
        with pytest.raises(InvalidInput, match=r"connection: its driver is async\. Write: await"):
            await asyncio.to_thread(lambda: send.sync.enqueue("acme", connection=caller.connection))
        with pytest.raises(SyncOnLoop):
            send.sync.enqueue("acme", connection=caller.connection)


@pytest.mark.tampers  # the other database is gone when the test is over
async def test_another_database_is_refused_whatever_it_holds(open_shop: Shop) -> None:
    shop = open_shop
    await shop.send.enqueue("acme")
    name = f"other_{shop.orders}"
    url = shop.url.replace(dsn(shop.url).rpartition("/")[2].partition("?")[0], name)
    admin = await asyncpg.connect(dsn(shop.url))
    await admin.execute(f'CREATE DATABASE "{name}"')
    try:
        with psycopg_connection(url) as empty, pytest.raises(SchemaMismatch, match="does not lead to the schema"):
            await shop.send.enqueue("acme", connection=empty.connection)
        twin = PostgresStore(url)  # the same schema, of the same version
        await twin.open()
        async with asyncpg_connection(url) as caller:
            await caller.begin()
            with pytest.raises(SchemaMismatch, match=rf"database '{name}' has one of its own \(version \d+\)"):
                await shop.send.enqueue("acme", connection=caller.connection)
            await caller.commit()  # nothing was written, and the transaction goes on
            await caller.execute(twin._db.qualify("ALTER TABLE §run RENAME COLUMN lane TO track"))
            with pytest.raises(SchemaMismatch, match='column "lane"'):
                await shop.send.enqueue("acme", connection=caller.connection)
            await caller.execute(twin._db.qualify("ALTER TABLE §run RENAME COLUMN track TO lane"))
        assert await twin.tail(0, 10) == []
        await twin.close()
    finally:
        await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        await admin.close()


async def test_the_error_for_a_user_without_rights_names_them(shared: Shop) -> None:
    shop = shared
    await shop.send.enqueue("acme")
    role = f"guest_{shop.orders}"
    admin = await asyncpg.connect(dsn(shop.url))
    await admin.execute(f"CREATE ROLE {role} LOGIN")
    try:
        async with await psycopg.AsyncConnection.connect(dsn(shop.url), user=role) as connection:
            with pytest.raises(StoreDenied, match="needs USAGE on schema"):
                await shop.send.enqueue("acme", connection=connection)
    finally:
        await admin.execute(f"DROP ROLE {role}")
        await admin.close()


async def test_other_errors_of_a_driver_reach_the_caller_unchanged(shared: Shop) -> None:
    async with asyncpg_connection(shared.url) as caller:
        await caller.execute("BEGIN TRANSACTION READ ONLY")
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await shared.send.enqueue("acme", connection=caller.connection)
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await shared.send.enqueue("acme", connection=caller.connection)
        await caller.execute("ROLLBACK")


def test_no_driver_mistakes_text_in_the_statements_for_a_placeholder() -> None:
    for statement in (joining_sql.INSERT_RUNS_IF_AT_HOME, joining_sql.FIND_KEY_HOLDERS):
        assert "%" not in statement
        assert "$" not in statement
        assert statement.count("{document}") == 1
