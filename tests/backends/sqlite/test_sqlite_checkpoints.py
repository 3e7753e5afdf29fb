"""Checkpoints of the write-ahead log on a thread of their own, beside the commits."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.backends.sqlite import SqliteStore
from mainspring.backends.sqlite import wal_checkpoints as checkpoints
from mainspring.model.keyvalue import KeyValue


async def commit(store: SqliteStore, times: int) -> None:
    for number in range(times):
        await store.put([KeyValue(kind="test", id=str(number), data="x" * 500)], replace=True)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mainspring-checkpoints"]


def until(what: Callable[[], object]) -> None:
    """Wait until another thread has made it true."""
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def rounds(store: SqliteStore) -> int:
    running = store._db._checkpoints
    return 0 if running is None else running.rounds


def count_open_files(path: Path) -> int:
    """Count the open files of this process that belong to the database."""
    names = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum(name.startswith(str(path)) for name in names)


async def test_checkpoints_move_the_log_while_commits_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    await store.open()
    store._db.run("PRAGMA wal_autocheckpoint = 0")
    await commit(store, checkpoints.CHECKPOINT_EVERY_COMMITS)
    until(lambda: rounds(store) >= checkpoints.CHECKPOINT_ROUNDS)  # before that, the file is only written in part
    reader = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)  # reads the file without its log
    assert reader.execute("SELECT count(*) FROM kept").fetchone()[0] >= checkpoints.CHECKPOINT_EVERY_COMMITS // 2
    reader.close()
    await store.close()


async def test_the_log_file_stays_short_while_commits_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path), synchronous="normal")
    await store.open()
    store._db.run("PRAGMA wal_autocheckpoint = 0")
    await commit(store, checkpoints.CHECKPOINT_EVERY_COMMITS)
    once = path.with_suffix(".db-wal").stat().st_size
    await commit(store, 9 * checkpoints.CHECKPOINT_EVERY_COMMITS)
    assert path.with_suffix(".db-wal").stat().st_size < 5 * once
    await store.close()


async def test_a_program_that_writes_little_gets_no_checkpoint_thread(tmp_path: Path) -> None:
    before = len(threads())
    store = SqliteStore(str(tmp_path / "a.db"))
    await store.open()
    await commit(store, checkpoints.CHECKPOINT_EVERY_COMMITS * 9 // 10)
    assert len(threads()) == before
    await store.close()


async def test_many_rows_count_as_commits(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "a.db"))
    await store.open()
    rows = [
        KeyValue(kind="test", id=str(number), data="x")
        for number in range(checkpoints.ROWS_PER_COMMIT * checkpoints.CHECKPOINT_EVERY_COMMITS // 10)
    ]
    for _ in range(10):
        await store.put(rows, replace=True)
    until(lambda: rounds(store))
    await store.close()


async def test_close_leaves_neither_thread_nor_file(tmp_path: Path) -> None:
    before = len(threads())
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    await store.open()
    await commit(store, checkpoints.CHECKPOINT_EVERY_COMMITS)
    until(lambda: rounds(store))
    await store.close()
    until(lambda: len(threads()) == before)
    assert count_open_files(path) == 0
    assert not path.with_suffix(".db-wal").exists()


async def test_a_checkpoint_that_fails_harms_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    await store.open()
    assert store._db._checkpoints is not None
    monkeypatch.setattr(store._db._checkpoints, "_uri", f"file:{tmp_path}/nowhere/b.db?mode=rw")
    await commit(store, 3 * checkpoints.CHECKPOINT_EVERY_COMMITS)
    assert rounds(store) == 0
    await store.close()


async def test_a_checkpoint_does_not_create_a_removed_file_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    await store.open()
    for end in ("", "-wal", "-shm"):
        os.unlink(f"{path}{end}")
    running = checkpoints.WalCheckpoints(str(path), threading.Lock())
    running._checkpoint()
    assert not path.exists()
    store._db.is_file_lost = True
    await store.close()


def _child(path: str) -> None:
    import asyncio

    async def write() -> None:
        store = SqliteStore(path)
        await store.open()
        await commit(store, 2 * checkpoints.CHECKPOINT_EVERY_COMMITS)
        await store.close()

    asyncio.run(write())


@pytest.mark.usefixtures("frozen_heap")  # a child that collects garbage would copy the pages of all earlier tests
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")  # that is the point
async def test_the_checkpoint_thread_works_on_after_forks_and_shares_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(str(path))
    await store.open()
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        await commit(store, checkpoints.CHECKPOINT_EVERY_COMMITS)
        child = context.Process(target=_child, args=(str(path),))
        child.start()
        await commit(store, checkpoints.CHECKPOINT_EVERY_COMMITS)
        child.join(30)
        assert child.exitcode == 0
    before = rounds(store)
    await commit(store, checkpoints.CHECKPOINT_EVERY_COMMITS)
    until(lambda: rounds(store) > before)
    await store.close()
