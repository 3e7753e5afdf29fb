"""The write-ahead log is moved into the file beside the commits, and nobody notices."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.model.kept import Kept
from mainspring.stores.sqlite import SqliteStore, checkpoints


async def commit(store: SqliteStore, times: int) -> None:
    for number in range(times):
        await store.keep([Kept(kind="test", id=str(number), data="x" * 500)], replace=True)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mainspring-checkpoints"]


def until(what: Callable[[], object]) -> None:
    """Wait for a fact of another thread."""
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def rounds(store: SqliteStore) -> int:
    moving = store._db._checkpoints
    return 0 if moving is None else moving.rounds


def files_of(path: Path) -> int:
    """Open files of this process that belong to the database."""
    names = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum(name.startswith(str(path)) for name in names)


async def test_the_log_is_moved_while_commits_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    await store.open()
    store._db.run("PRAGMA wal_autocheckpoint = 0")
    await commit(store, checkpoints.EVERY)
    until(lambda: rounds(store) >= checkpoints.ROUNDS)  # before that it may be read half-written
    reader = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)  # looks at the file alone, not at its log
    assert reader.execute("SELECT count(*) FROM kept").fetchone()[0] >= checkpoints.EVERY // 2
    reader.close()
    await store.close()


async def test_the_log_begins_anew_though_commits_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path), synchronous="normal")
    await store.open()
    store._db.run("PRAGMA wal_autocheckpoint = 0")
    await commit(store, checkpoints.EVERY)
    once = path.with_suffix(".db-wal").stat().st_size
    await commit(store, 9 * checkpoints.EVERY)
    assert path.with_suffix(".db-wal").stat().st_size < 5 * once
    await store.close()


async def test_who_writes_little_has_no_thread(tmp_path: Path) -> None:
    before = len(threads())
    store = SqliteStore(str(tmp_path / "a.db"))
    await store.open()
    await commit(store, checkpoints.EVERY * 9 // 10)
    assert len(threads()) == before
    await store.close()


async def test_many_rows_count_as_commits(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "a.db"))
    await store.open()
    rows = [Kept(kind="test", id=str(number), data="x") for number in range(checkpoints.ROWS * checkpoints.EVERY // 10)]
    for _ in range(10):
        await store.keep(rows, replace=True)
    until(lambda: rounds(store))
    await store.close()


async def test_close_leaves_neither_thread_nor_file(tmp_path: Path) -> None:
    before = len(threads())
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    await store.open()
    await commit(store, checkpoints.EVERY)
    until(lambda: rounds(store))
    await store.close()
    until(lambda: len(threads()) == before)
    assert files_of(path) == 0
    assert not path.with_suffix(".db-wal").exists()


async def test_a_checkpoint_that_fails_harms_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    await store.open()
    assert store._db._checkpoints is not None
    monkeypatch.setattr(store._db._checkpoints, "_uri", f"file:{tmp_path}/nowhere/b.db?mode=rw")
    await commit(store, 3 * checkpoints.EVERY)
    assert rounds(store) == 0
    await store.close()


async def test_a_file_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    await store.open()
    for end in ("", "-wal", "-shm"):
        os.unlink(f"{path}{end}")
    moving = checkpoints.Checkpoints(str(path), threading.Lock())
    moving._move()
    assert not path.exists()
    store._db.lost = True
    await store.close()


def _child(path: str) -> None:
    import asyncio

    async def write() -> None:
        store = SqliteStore(path)
        await store.open()
        await commit(store, 2 * checkpoints.EVERY)
        await store.close()

    asyncio.run(write())


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")  # that is the point
async def test_no_file_of_it_crosses_a_fork(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    await store.open()
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        await commit(store, checkpoints.EVERY)
        child = context.Process(target=_child, args=(str(path),))
        child.start()
        await commit(store, checkpoints.EVERY)
        child.join(30)
        assert child.exitcode == 0
    before = rounds(store)
    await commit(store, checkpoints.EVERY)
    until(lambda: rounds(store) > before)
    await store.close()
