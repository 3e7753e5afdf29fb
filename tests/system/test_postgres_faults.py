"""A server that is down, refuses, or disappears during a commit: the error is exact, and no change is lost."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest

from mainspring.backends.postgres import PostgresStore, errors
from mainspring.ledger.verify import verify
from mainspring.model.change import Change
from mainspring.model.errors import (
    InvalidInput,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from mainspring.model.events import InstanceJoined, SchedulePaused
from mainspring.ports.store import Events, Runs, Schedules
from mainspring.testing.contract.factories import (
    Ids,
    create_schedule_change,
    enqueue_change,
    make_run,
    make_schedule,
    schedule_change,
)
from servers.for_tests import database_url, fresh_url
from servers.proxy import Proxy
from tests.backends.bulks import bulk_change
from tests.system.lost_answers import LostAnswers

#: The proxy is gone when a test is over: `events verify` goes past it, in the fixture.
pytestmark = pytest.mark.tampers


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    async with Proxy(url) as proxy:
        yield proxy


@pytest.fixture
async def store(url: str, proxy: Proxy) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(proxy.url + "&pool=1&listen=0")
    await store.open()
    yield store
    proxy.refusing = False
    await store.close()
    direct = PostgresStore(url)
    await direct.open()
    report = await verify(direct)
    await direct.close()
    assert report.ok, report.differences[:5]


@pytest.fixture
def ids() -> Ids:
    return Ids()


# ── at the start ────────────────────────────────────────────────────────────


async def test_open_logs_each_try_to_reach_a_server_that_is_down_then_gives_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    store = PostgresStore("postgresql://nobody@127.0.0.1:1/x?wait=400ms")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1/x does not answer .*gave up after 0\.4 s\. Start the"):
        await store.open()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) >= 2
    assert all(re.search(r"next try in \d\.\d s, giving up in \d s", line) for line in lines)


async def test_open_uses_a_server_that_starts_meanwhile(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    proxy.refusing = True

    class Mend(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            proxy.refusing = False

    log = logging.getLogger("mainspring.backends.postgres")
    handler = Mend()
    log.addHandler(handler)
    try:
        store = PostgresStore(proxy.url)
        await store.open()
    finally:
        log.removeHandler(handler)
    assert await store.find(Runs()) == []
    await store.close()


async def test_a_wrong_user_is_refused_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    url = database_url().replace("postgres@", "nobody_knows@")
    with pytest.raises(StoreDenied, match=r"refused the user or the password .*Check the URL"):
        await PostgresStore(url).open()
    assert caplog.records == []


def test_the_error_for_a_wrong_password_does_not_contain_it() -> None:
    error = errors.translate(
        asyncpg.InvalidPasswordError('password authentication failed for user "ann"'), "PostgreSQL"
    )
    assert isinstance(error, StoreDenied)
    settings = PostgresStore("postgresql://ann:s3cret@db.example/app").settings
    assert "s3cret" not in settings.where


async def test_the_error_for_a_missing_database_names_createdb() -> None:
    url = database_url().rpartition("/")[0] + "/nowhere"
    with pytest.raises(StoreDenied, match=r"there is no such database .*createdb nowhere"):
        await PostgresStore(url).open()


async def test_an_old_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = asyncpg.types.ServerVersion(13, 22, 0, "final", 0)
    monkeypatch.setattr(asyncpg.Connection, "get_server_version", lambda self: old)
    with pytest.raises(StoreError, match=r"is PostgreSQL 13\.22; Mainspring needs 14 or newer"):
        await PostgresStore(fresh_url()).open()


async def test_the_error_for_missing_rights_names_the_remedy() -> None:
    base = database_url()
    owner = await asyncpg.connect(base)
    try:
        await owner.execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
    finally:
        await owner.close()
    url = fresh_url()
    guest = url.replace("postgres@", "guest@")
    with pytest.raises(StoreDenied, match=r"may not create schema .*mainspring migrate --sql"):
        await PostgresStore(guest).open()
    made = PostgresStore(url)
    await made.open()
    await made.close()
    with pytest.raises(StoreDenied, match="lacks a right"):
        await PostgresStore(guest).open()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("shema=x", "Did you mean 'schema'?"),
        ("schema=a-b", "is not allowed"),
        ("pool=0", "not a number from 1 to 100"),
        ("pooler=maybe", "Use 1 or 0"),
        ("listen=where", "host:port"),
        ("wait=soon", "wait"),
    ],
)
def test_a_wrong_url_option_is_refused_with_a_fix(query: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)):
        PostgresStore(f"postgresql://me@db/app?{query}")


# ── in the middle ───────────────────────────────────────────────────────────

Cruelty = Callable[[Proxy, Callable[[bytes], bool]], None]


def is_commit(data: bytes) -> bool:
    return b"COMMIT\0" in data


def is_execution(data: bytes) -> bool:
    """Return True for the execution of a prepared statement with rows; the driver's own queries are shorter."""
    return data[:1] == b"B" and len(data) > 200


@pytest.mark.parametrize("lose", [Proxy.lose_answer, Proxy.lose_request])
async def test_inserts_whose_answer_or_request_is_lost_are_stored_once(
    proxy: Proxy, store: PostgresStore, ids: Ids, lose: Cruelty
) -> None:
    changes = [enqueue_change(ids, make_run(ids, unique_key=f"k{i}"), body=f'"{i}"') for i in range(3)]
    lose(proxy, is_execution)
    results = (await store.apply(changes)).results
    assert proxy.lost == 1
    assert all(result.ok for result in results)
    assert {result.status for result in results} == {"repeated" if lose is Proxy.lose_answer else "accepted"}
    assert len(await store.find(Runs())) == len(await store.find(Events())) == 3


async def test_a_commit_whose_answer_is_lost_is_found_by_its_ids(proxy: Proxy, store: PostgresStore, ids: Ids) -> None:
    await store.apply([create_schedule_change(ids, make_schedule(ids))])
    (row,) = await store.find(Schedules())
    note = Change(id=ids.change(), events=(InstanceJoined(instance="i"),))
    loose = make_run(ids)
    bulk = bulk_change(ids, (loose,))
    paused = SchedulePaused(schedule_id=row.id, reason="user")
    pause = schedule_change(ids, row, paused, state="paused", reason="user", next_at=None)
    proxy.lose_answer(is_commit)
    results = (await store.apply([pause, note, bulk])).results
    assert proxy.lost == 1
    assert [result.status for result in results] == ["repeated"] * 3
    names = [type(event).__name__ for event in await store.find(Events())]
    assert sorted(names) == ["InstanceJoined", "RunScheduled", "ScheduleCreated", "SchedulePaused"]


async def test_a_commit_whose_request_is_lost_is_sent_again(proxy: Proxy, store: PostgresStore, ids: Ids) -> None:
    note = Change(id=ids.change(), events=(InstanceJoined(instance="i"),))
    proxy.lose_request(is_commit)
    assert [result.status for result in (await store.apply([note])).results] == ["accepted"]
    assert proxy.lost == 1
    assert len(await store.find(Events())) == 1


class TestLostAnswers(LostAnswers):
    is_write = staticmethod(is_execution)


async def test_a_terminated_backend_fails_at_most_one_call(store: PostgresStore) -> None:
    url = store.settings.dsn
    assert await store.find(Runs()) == []
    async with store._db.read_only() as session:
        pid = await session.value("SELECT pg_backend_pid()")
    other = await asyncpg.connect(url)
    try:
        assert await other.fetchval("SELECT pg_terminate_backend($1)", pid)
    finally:
        await other.close()
    for _ in range(2):
        try:
            assert await store.find(Runs()) == []
            break
        except StoreUnavailable:
            continue
    else:
        pytest.fail("the store did not come back")


async def test_callers_of_an_exhausted_pool_wait(store: PostgresStore) -> None:
    answers = await asyncio.gather(*(store.find(Runs()) for _ in range(40)))
    assert answers == [[]] * 40
    pool = store._db._pool
    assert pool is not None
    assert pool.size == 1
