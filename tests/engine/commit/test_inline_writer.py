"""Runs that a caller's own thread writes to the file: one at a time, and only while nothing is in the way."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from mainspring import Mainspring
from mainspring.backends.sqlite import SqliteStore
from mainspring.engine.commit import inline_writer as inline
from mainspring.engine.commit.inline_writer import (
    INLINE_AFTER_CHANGES,
    MAX_DETOUR,
    MIN_DETOUR,
    SLOW_COMMIT_SECONDS,
    InlineWriter,
)
from mainspring.engine.commit.submitter import ThreadsafeSubmitter
from mainspring.ledger.verify import verify
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.ports.store import Applied, Store

#: The first opens the engine, by another way; the next ones show that they come often.
FIRST = 1 + INLINE_AFTER_CHANGES


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The thread of every change that went to the engine's."""
    seen: list[str] = []
    original = ThreadsafeSubmitter._submit

    def ask(self: ThreadsafeSubmitter, change: Any, future: Any) -> None:
        seen.append(threading.current_thread().name)
        original(self, change, future)

    monkeypatch.setattr(ThreadsafeSubmitter, "_submit", ask)
    monkeypatch.setattr(inline, "SLOW_COMMIT_SECONDS", 60.0)  # whatever the disk of a test does
    return seen


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Mainspring]:
    ms = Mainspring(f"sqlite:///{tmp_path}/a.db")

    @ms.task(name="nothing")
    def nothing() -> None: ...

    yield ms
    ms.sync.close()


async def often(ms: Mainspring, some: int = 1) -> None:
    """Enqueue until the short way is open, then some more by it."""
    for _ in range(FIRST + some):
        await ms.tasks["nothing"].enqueue()


async def ledger_is_right(ms: Mainspring) -> bool:
    store = SqliteStore(ms.url.removeprefix("sqlite:///"))
    await store.open()
    try:
        return (await verify(store)).ok
    finally:
        await store.close()


async def test_a_caller_that_enqueues_often_writes_on_its_own_thread(app: Mainspring, crossed: list[str]) -> None:
    await often(app, 10)
    assert len(crossed) == INLINE_AFTER_CHANGES
    assert len(await app.runs(limit=100)) == FIRST + 10
    assert await ledger_is_right(app)


async def test_a_thread_without_a_loop_does_too(app: Mainspring, crossed: list[str]) -> None:
    def work() -> None:
        for _ in range(FIRST + 10):
            app.tasks["nothing"].sync.enqueue()

    await asyncio.to_thread(work)
    assert len(crossed) == INLINE_AFTER_CHANGES
    assert len(await app.runs(limit=100)) == FIRST + 10


async def test_runs_that_meet_go_together_by_the_engine(app: Mainspring, crossed: list[str]) -> None:
    await often(app)
    await asyncio.gather(*(app.tasks["nothing"].enqueue() for _ in range(40)))
    assert len(crossed) == INLINE_AFTER_CHANGES + 40
    await app.tasks["nothing"].enqueue()
    assert len(crossed) == INLINE_AFTER_CHANGES + 40, "alone again"
    assert len(await app.runs(limit=100)) == FIRST + 42


async def test_threads_that_meet_lose_nothing(app: Mainspring, crossed: list[str]) -> None:
    await often(app)

    def work() -> None:
        for _ in range(50):
            app.tasks["nothing"].sync.enqueue()

    await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
    assert len(await app.runs(limit=500)) == FIRST + 1 + 200
    assert await ledger_is_right(app)


async def test_a_unique_run_is_found_by_this_way_too(app: Mainspring, crossed: list[str]) -> None:
    await often(app)
    first = await app.tasks["nothing"].using(unique="one").enqueue()
    second = await app.tasks["nothing"].using(unique="one").enqueue()
    assert (first.created, second.created, second.id) == (True, False, first.id)
    assert len(crossed) == INLINE_AFTER_CHANGES


async def test_with_a_worker_here_a_claim_rides_along_instead(app: Mainspring, crossed: list[str]) -> None:
    async with app.running():
        for _ in range(FIRST + 5):
            run = await app.tasks["nothing"].enqueue()
        await run.result(timeout="10s")
    assert len(crossed) == FIRST + 5


async def test_the_callers_loop_goes_on_while_another_connection_writes(
    app: Mainspring, crossed: list[str], tmp_path: Path
) -> None:
    await often(app)
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(app.tasks["nothing"].enqueue())
    async with asyncio.timeout(5):
        while len(crossed) == INLINE_AFTER_CHANGES:  # noqa: ASYNC110 - this loop would stand still, too
            await asyncio.sleep(0)
    assert not waiting.done()
    other.execute("ROLLBACK")
    await waiting
    other.close()
    assert len(await app.runs(limit=100)) == FIRST + 2


async def test_a_file_that_is_gone_gets_no_run(app: Mainspring, crossed: list[str], tmp_path: Path) -> None:
    await often(app)
    os.rename(tmp_path / "a.db", tmp_path / "b.db")
    with pytest.raises(StoreUnavailable, match="removed or replaced while it was open"):
        await app.tasks["nothing"].enqueue()


async def test_close_lets_go_of_the_file_and_the_next_call_opens_it_again(app: Mainspring, tmp_path: Path) -> None:
    for _ in range(2):
        await often(app)
        assert open_files(tmp_path)
        await app.close()
        assert not open_files(tmp_path)
    await often(app)
    assert len(await app.runs(limit=100)) == 3 * (FIRST + 1)


def open_files(folder: Path) -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if name.startswith(str(folder)):
            found.append(name)
    return found


# ── a slow disk ─────────────────────────────────────────────────────────────


class Disk:
    """A store that takes as long as it is told, by a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.takes = 0.0
        self.error: StoreError | None = None
        self.here = 0
        self.there = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def apply(self, changes: list[Change]) -> Applied | Result:
        if isinstance(changes, Change):
            self.there += 1
            return Result("accepted")
        self.now += self.takes
        if self.error is not None:
            raise self.error
        self.here += 1
        return Applied(0, [Result("accepted")] * len(changes), None)


async def by(way: InlineWriter, count: int) -> None:
    for _ in range(count):
        assert (await way.apply(Change(id="c"))).status == "accepted"


async def opened(disk: Disk) -> InlineWriter:
    way = InlineWriter(lambda: cast("Store", disk), cast("ThreadsafeSubmitter", disk), lambda: disk.now)
    await by(way, INLINE_AFTER_CHANGES)
    assert (disk.here, disk.there) == (0, INLINE_AFTER_CHANGES)
    disk.there = 0
    return way


async def test_a_disk_that_was_slow_is_left_to_the_engine_for_a_while() -> None:
    disk = Disk()
    way = await opened(disk)
    await by(way, 10)
    assert (disk.here, disk.there) == (10, 0)
    disk.takes = 2 * SLOW_COMMIT_SECONDS
    await by(way, 1 + MIN_DETOUR + 1 + 2 * MIN_DETOUR + 1)
    assert (disk.here, disk.there) == (13, 3 * MIN_DETOUR)
    disk.takes = 0.0
    await by(way, 4 * MIN_DETOUR + 5)
    assert (disk.here, disk.there) == (18, 7 * MIN_DETOUR)
    disk.takes = 2 * SLOW_COMMIT_SECONDS
    await by(way, 1 + MIN_DETOUR + 1)
    assert (disk.here, disk.there) == (20, 8 * MIN_DETOUR), "forgiven"


async def test_however_slow_it_is_tried_again() -> None:
    disk = Disk()
    way = await opened(disk)
    disk.takes = 1.0
    await by(way, 3 * MAX_DETOUR)
    assert 11 <= disk.here <= 15


async def test_a_failed_inline_write_goes_through_the_engine_which_reports_the_error() -> None:
    disk = Disk()
    way = await opened(disk)
    disk.error = StoreUnavailable("locked")
    await by(way, 3)
    assert (disk.here, disk.there) == (0, 3)
    disk.error = StoreError("odd")
    await by(way, 1)
    disk.error = None
    await by(way, MIN_DETOUR + 1)
    assert (disk.here, disk.there) == (1, 4 + MIN_DETOUR)
