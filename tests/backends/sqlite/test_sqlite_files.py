"""The SQLite store's file: created by many at once, damaged, foreign, full, unwritable, shared, and after a restart."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from mainspring.backends.sqlite import SqliteStore
from mainspring.model.change import Body, Change, RunAbsent, RunLease
from mainspring.model.errors import (
    NetworkFilesystem,
    SchemaMismatch,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from mainspring.model.events import RunScheduled, RunSucceeded
from mainspring.model.ids import IdFactory, body_id
from mainspring.model.retention import Retention
from mainspring.model.run import Run, State
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Agenda, Leases, Offer, Runs
from mainspring.testing.contract.factories import with_kind

SPAWN = multiprocessing.get_context("spawn")
OFFER = Offer("w", ("default/default",), ("t",), 30_000)


def enqueue(ids: IdFactory, *, at: int = 1_000, body: str | None = None, key: str | None = None) -> Change:
    run_id = ids.uuid7(at)
    bodies = () if body is None else (Body(body_id(body.encode()), body),)
    run = Run(id=run_id, task="t", due_at=at, ready_at=at, body=bodies[0].id if bodies else None, unique_key=key)
    event = RunScheduled(run_id=run_id, task="t", due_at=at, body=run.body, unique_key=key)
    return with_kind(Change(id=ids.uuid7(at), guard=RunAbsent(run_id, key), run=run, bodies=bodies, events=(event,)))


def finish(run: Run, change: str) -> Change:
    event = RunSucceeded(run_id=run.id, epoch=run.epoch, attempt=run.attempt, owner=run.owner)
    ended = replace(run, state=State.SUCCEEDED)
    return with_kind(Change(id=change, guard=RunLease(run.id, run.epoch), run=ended, events=(event,)))


def filled(path: Path, count: int = 500) -> None:
    async def fill() -> None:
        store = SqliteStore(str(path))
        await store.open()
        ids = IdFactory(random.Random(7))
        await store.apply([enqueue(ids, body="x" * 100) for _ in range(count)])
        await store.close()

    asyncio.run(fill())


async def opening_fails(path: Path, error: type[StoreError]) -> str:
    with pytest.raises(error) as caught:
        await SqliteStore(str(path)).open()
    assert str(path) in str(caught.value)
    return str(caught.value)


# ── many processes ──────────────────────────────────────────────────────────


def _create(path: str, start: float, answers: multiprocessing.Queue[str]) -> None:
    async def create() -> None:
        store = SqliteStore(path)
        await store.open()
        await store.apply([enqueue(IdFactory(random.Random(os.getpid())))])
        await store.close()

    time.sleep(max(0.0, start - time.time()))
    try:
        asyncio.run(create())
        answers.put("ok")
    except BaseException as error:
        answers.put(repr(error))


def test_eight_processes_create_one_file_at_the_same_moment(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    answers: multiprocessing.Queue[str] = SPAWN.Queue()
    start = time.time() + 1.5
    workers = [SPAWN.Process(target=_create, args=(path, start, answers)) for _ in range(8)]
    for worker in workers:
        worker.start()
    assert [answers.get(timeout=40) for _ in workers] == ["ok"] * 8
    for worker in workers:
        worker.join()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (8,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def _work(path: str, number: int, answers: multiprocessing.Queue[list[str]]) -> None:
    async def work() -> list[str]:
        store = SqliteStore(path)
        await store.open()
        ids = IdFactory(random.Random(number))
        done: list[str] = []
        offer = replace(OFFER, owner=f"w{number}")
        while claims := (await store.claim(offer, 100)).claims:
            outcome = await store.apply([finish(claim.run, ids.uuid7(1)) for claim in claims])
            done += [c.run.id for c, r in zip(claims, outcome.results, strict=True) if r.status == "accepted"]
        await store.close()
        return done

    answers.put(asyncio.run(work()))


def test_eight_processes_share_twenty_thousand_runs_and_none_runs_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    filled(Path(path), 20_000)
    answers: multiprocessing.Queue[list[str]] = SPAWN.Queue()
    workers = [SPAWN.Process(target=_work, args=(path, n, answers)) for n in range(8)]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    counts = Counter(run_id for _ in workers for run_id in answers.get(timeout=50))
    took = time.monotonic() - began
    for worker in workers:
        worker.join()
    assert len(counts) == 20_000
    assert set(counts.values()) == {1}
    connection = sqlite3.connect(path)
    states = connection.execute("SELECT state, attempt, n, count(*) FROM run GROUP BY 1, 2, 3").fetchall()
    connection.close()
    assert states == [("succeeded", 1, 3, 20_000)]
    assert took < 30


async def test_a_commit_of_another_process_ends_the_wait(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "ledger.db"))
    await store.open()
    assert not await store.wait(0.06)
    waiting = asyncio.create_task(store.wait(20))
    other = SqliteStore(str(tmp_path / "ledger.db"))
    await other.open()
    await other.apply([enqueue(IdFactory(random.Random(1)))])
    assert await waiting
    assert not await store.wait(0.06)
    await other.close()
    await store.close()


async def test_a_forked_child_cannot_use_the_connection(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "ledger.db"))
    await store.open()
    store._db._pid += 1  # as a forked child sees it
    with pytest.raises(StoreError, match="Make and open a new store"):
        await store.find(Runs())
    with pytest.raises(StoreError, match="Make and open a new store"):
        await store.apply([enqueue(IdFactory(random.Random(1)))])
    store._db._pid -= 1
    assert await store.find(Runs()) == []
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await store.find(Runs())


# ── files that cannot be used ───────────────────────────────────────────────


@pytest.mark.parametrize("content", [b"hello", b"not a database " * 1000, b"\0" * 5000])
async def test_a_file_that_is_no_database_is_refused_and_unchanged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    await opening_fails(path, StoreCorrupt)
    assert path.read_bytes() == content


@pytest.mark.tampers
def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    filled(path)
    content = path.read_bytes()[: path.stat().st_size // 2 // 4096 * 4096]
    path.write_bytes(content)
    asyncio.run(opening_fails(path, StoreCorrupt))
    assert path.read_bytes() == content


@pytest.mark.tampers
def test_a_damaged_page_is_refused_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    filled(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(4096, size, 4096):
            file.seek(page)
            file.write(b"\xff" * 200)

    async def use() -> None:
        store = SqliteStore(str(path))
        try:
            await store.open()
            await store.find(Runs())
        finally:
            await store.close()

    with pytest.raises(StoreCorrupt, match="left as it is"):
        asyncio.run(use())


@pytest.mark.tampers
async def test_a_newer_schema_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqliteStore(str(path))
    await store.open()
    await store.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    assert "99" in await opening_fails(path, SchemaMismatch)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mark", ["PRAGMA application_id = 7", "PRAGMA user_version = 3", "CREATE TABLE mine (x)"])
async def test_another_applications_database_is_refused_and_unchanged(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute(mark)
    connection.commit()
    connection.close()
    before = path.read_bytes()
    assert "another application" in await opening_fails(path, StoreCorrupt)
    assert path.read_bytes() == before
    assert not (tmp_path / "app.db-wal").exists()


async def test_places_that_cannot_hold_a_file(tmp_path: Path) -> None:
    assert "is a directory" in await opening_fails(tmp_path, StoreUnavailable)
    assert "mkdir -p" in await opening_fails(tmp_path / "gone" / "ledger.db", StoreUnavailable)


async def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so os.access is patched, and SQLite's own refusal comes from a query-only connection."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        await opening_fails(tmp_path / "ledger.db", StoreReadOnly)
    store = SqliteStore(str(tmp_path / "ledger.db"))
    await store.open()
    store._db.run("PRAGMA query_only = ON")
    with pytest.raises(StoreReadOnly, match="writable"):
        await store.apply([enqueue(IdFactory(random.Random(1)))])
    store._db.run("PRAGMA query_only = OFF")
    await store.apply([enqueue(IdFactory(random.Random(1)))])
    await store.close()


async def test_a_full_database_changes_nothing_and_goes_on_later(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "ledger.db"))
    await store.open()
    ids = IdFactory(random.Random(1))
    pages = store._db.value("PRAGMA page_count")
    store._db.run(f"PRAGMA max_page_count = {pages + 5}")
    with pytest.raises(StoreFull, match="Free some space"):
        await store.apply([enqueue(ids, body="x" * 1_000) for _ in range(100)])
    assert await store.find(Runs()) == []
    store._db.run("PRAGMA max_page_count = 1000000")
    await store.apply([enqueue(ids, body="x" * 1_000) for _ in range(100)])
    assert len(await store.find(Runs())) == 100
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("a small disk needs the right to mount; the same rule is tested by max_page_count")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


async def test_a_full_disk_changes_nothing_and_goes_on_later(small_disk: Path) -> None:
    store = SqliteStore(str(small_disk / "ledger.db"))
    await store.open()
    ids = IdFactory(random.Random(1))
    await store.apply([enqueue(ids)])
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(StoreFull):
        for _ in range(100):
            await store.apply([enqueue(ids, body="x" * 1_000) for _ in range(100)])
    kept = len(await store.find(Runs(limit=100_000)))
    assert kept % 100 == 1
    ballast.unlink()
    await store.apply([enqueue(ids)])
    assert len(await store.find(Runs(limit=100_000))) == kept + 1
    await store.close()


async def test_locked_beyond_the_timeout(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqliteStore(str(path))
    await store.open()
    store._db.run("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        await store.apply([enqueue(IdFactory(random.Random(1)))])
    assert await store.find(Runs()) == []
    other.execute("ROLLBACK")
    other.close()
    await store.apply([enqueue(IdFactory(random.Random(1)))])
    assert len(await store.find(Runs())) == 1
    await store.close()


async def test_a_network_file_system_is_refused_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.backends.sqlite.database.filesystem_of", lambda path, mounts: "nfs4")
    path = tmp_path / "ledger.db"
    assert "force" in await opening_fails(path, NetworkFilesystem)
    assert not path.exists()
    forced = SqliteStore(str(path), force=True)
    await forced.open()
    await forced.close()


# ── clocks, failpoints, sizes ───────────────────────────────────────────────


async def test_a_restart_of_the_machine_voids_all_leases(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    store = SqliteStore(path)
    await store.open()
    await store.apply([enqueue(IdFactory(random.Random(1)))])
    (claim,) = (await store.claim(OFFER, 1)).claims
    leader = await store.lease("leader", "w", 30_000)
    assert leader is not None
    assert (claim.run.lease_until or 0) <= SystemClock().boot() + 30_000
    await store.close()

    again = SqliteStore(path)
    await again.open()
    assert not (await again.due(Agenda.EXPIRED, 10)).runs
    assert [lease.live for lease in await again.find(Leases())] == [True]
    await again.close()

    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = 'an earlier boot' WHERE key = 'boot_id'")
    connection.commit()
    connection.close()
    later = SqliteStore(path)
    await later.open()
    assert [run.id for run in (await later.due(Agenda.EXPIRED, 10)).runs] == [claim.run.id]
    assert [lease.live for lease in await later.find(Leases())] == [False]
    assert await later.lease("leader", "w", 30_000, epoch=leader.epoch) is None
    taken = await later.lease("leader", "v", 30_000)
    assert taken is not None
    assert taken.epoch == leader.epoch + 1
    await later.close()


class Stop(Exception):
    pass


async def through(store: SqliteStore, ids: IdFactory, way: str) -> None:
    """Call every verb that writes."""
    others = [enqueue(ids)] if way == "together" else []
    await store.apply([enqueue(ids, key="k" if way == "long" else None), *others])
    (claim,) = (await store.claim(OFFER, 1)).claims
    await store.renew("w", [(claim.run.id, claim.run.epoch)], 30_000)
    await store.due(Agenda.SCHEDULES, 10)
    await store.lease("leader", "w", 1_000)
    await store.apply([finish(claim.run, ids.uuid7(1))])
    await store.purge(Retention(ended_before=1 << 50), 10)


POINTS = [
    "open:after_migrate",
    *(f"apply:{at}" for at in ("begin", "after_guard", "after_rows", "after_events", "before_commit", "after_commit")),
    *(f"claim:{at}" for at in ("begin", "after_update", "after_events", "before_commit", "after_commit")),
    *("renew:begin", "renew:after_commit", "due:begin", "lease:before_commit", "lease:after_commit"),
    *("purge:before_commit", "purge:after_commit"),
]


@pytest.mark.parametrize("way", ["short", "together", "long"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_failure_at_any_point_leaves_a_usable_store(tmp_path: Path, point: str, way: str) -> None:
    armed = True

    def fail(name: str) -> None:
        nonlocal armed
        if armed and name == point:
            armed = False
            raise Stop

    path = str(tmp_path / "ledger.db")
    ids = IdFactory(random.Random(1))
    store = SqliteStore(path, failpoint=fail)
    with pytest.raises(Stop):
        await store.open()
        await through(store, ids, way)
    await store.open()
    rows = "SELECT (SELECT count(*) FROM event), (SELECT ifnull(sum(n), 0) FROM run)"
    events, moves = store._db.run(rows).fetchone()
    assert events == moves or point == "purge:after_commit"
    await store.renew("w", [], 1)
    left = await store.find(Runs(states=(State.WAITING,)))
    claims = (await store.claim(OFFER, 10)).claims if left else []
    assert len(claims) == len(left)
    await store.apply([enqueue(ids)])
    await store.close()


@pytest.mark.tampers
async def test_event_rows_are_small(tmp_path: Path) -> None:
    """A RunStarted or an empty RunSucceeded takes at most 200 bytes, with its entry in the index."""
    path = tmp_path / "ledger.db"
    store = SqliteStore(str(path))
    await store.open()
    ids = IdFactory(random.Random(1))
    changes = [enqueue(ids) for _ in range(2_000)]
    schedule = ids.uuid7(1_000)
    for n in range(0, 2_000, 100):
        part = changes[n : n + 100]
        planned = (replace(c.run, schedule_id=schedule, fire_key=c.id) for c in part if c.run is not None)
        await store.apply([with_kind(replace(c, run=r)) for c, r in zip(part, planned, strict=True)])
    store._db.run("DELETE FROM event")
    offer = replace(OFFER, owner="worker-host.example-12345-9f3a")
    while claims := (await store.claim(offer, 100)).claims:
        outcomes = [finish(claim.run, ids.uuid7(1)) for claim in claims]
        outcomes = [replace(c, events=tuple(replace(e, schedule_id=schedule) for e in c.events)) for c in outcomes]
        await store.apply(outcomes)
    await store.close()
    connection = sqlite3.connect(path)
    size, rows = connection.execute(
        "SELECT (SELECT sum(pgsize) FROM dbstat WHERE name IN ('event', 'event_of_run', 'event_of_schedule')), "
        "(SELECT count(*) FROM event)"
    ).fetchone()
    connection.close()
    assert rows == 4_000
    assert size / rows <= 200


@pytest.mark.tampers
async def test_texts_that_are_hard_to_encode_as_json_are_read_back_unchanged(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "ledger.db"))
    await store.open()
    ids = IdFactory(random.Random(1))
    hard = 'quote " back\\slash \\u0000 \u2028 \U0001f600 \x01 \x7f {"a": [1, null]} é'
    change = enqueue(ids, body=hard)
    await store.apply([change])
    (claim,) = (await store.claim(OFFER, 1)).claims
    assert claim.body == hard
    done = finish(replace(claim.run, error=hard, result=hard, reason="a\0b"), "c")
    await store.apply([done])
    (run,) = await store.find(Runs())
    assert (run.error, run.result, run.reason) == (hard, hard, "a\u2400b")
    await store.close()


def _child(store: SqliteStore) -> None:
    """Run in a forked child: the parent's connection is refused, a new one works."""
    code = 1
    try:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(store.find(Runs()))
        except StoreError:
            loop.run_until_complete(store.open())
            loop.run_until_complete(store.apply([enqueue(IdFactory(random.Random(os.getpid())))]))
            loop.run_until_complete(store.close())
            code = 0
    finally:
        os._exit(code)


async def test_a_forked_child_opens_the_store_anew(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "ledger.db"))
    await store.open()
    await store.apply([enqueue(IdFactory(random.Random(1)))])
    worker = multiprocessing.get_context("fork").Process(target=_child, args=(store,))
    worker.start()
    await asyncio.to_thread(worker.join)
    assert worker.exitcode == 0
    await store.apply([enqueue(IdFactory(random.Random(2)))])
    assert len(await store.find(Runs())) == 3
    await store.close()
