"""Disks that fail under a running program: acknowledged runs are kept, failed writes are reported, and work goes on."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from mainspring import Mainspring
from mainspring.backends.memory.store import MemoryStore
from mainspring.backends.sqlite import SqliteStore
from mainspring.ledger.verify import verify
from mainspring.model.errors import SchemaMismatch, StoreCorrupt, StoreError, StoreUnavailable
from mainspring.model.events import Event
from mainspring.ports.store import Events
from mainspring.testing.virtual_time import VirtualClock
from tests.system.nodes import CallLog, judge

APP = Path(__file__).with_name("disk_app.py")


def survives(folder: Path, fault: str, says: str, log: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(APP), str(folder), fault, str(log)],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    acknowledged, refused, text = done.stdout.splitlines()
    print(f"{fault}: {acknowledged} acknowledged, {refused} refused: {text}")
    assert says in text
    found, counts = judge(f"sqlite:///{folder / 'x.db'}", CallLog(log))
    assert not found, found
    assert counts["planned"] >= 5


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("pages", "Free some space"),
        ("limit", "Check the disk"),
        ("read_only", "writable"),
        ("io_error", "Check the disk"),
    ],
)
def test_a_disk_that_fails_for_a_while_costs_no_run_and_no_restart(tmp_path: Path, fault: str, says: str) -> None:
    survives(tmp_path, fault, says, tmp_path / "calls")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("a small disk needs the right to mount; the same rule is tested by page counts and file limits")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_that_is_freed_costs_no_run(small_disk: Path, tmp_path: Path) -> None:
    survives(small_disk, "ballast", "Free some space", tmp_path / "calls")


# ── read-only files, without root rights ────────────────────────────────────

OPEN = """
import asyncio, os, sys
from mainspring import Mainspring
from mainspring.model.errors import StoreError

ms = Mainspring(f"sqlite:///{sys.argv[1]}")
ms.task(name="t")(lambda: None)
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)

async def main():
    try:
        await ms.tasks["t"].enqueue()
    except StoreError as error:
        print(type(error).__name__, error)

asyncio.run(main())
"""


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_read_only_file_is_refused_by_name_and_not_changed(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "place"
    folder.mkdir()
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)
    db = folder / "x.db"
    asyncio.run(filled(db, 3))
    before = db.read_bytes()
    db.chmod(0o444 if what == "file" else 0o666)
    folder.chmod(0o777 if what == "file" else 0o555)
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(db)], capture_output=True, text=True, timeout=50, check=False
    )
    folder.chmod(0o777)
    db.chmod(0o600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("StoreReadOnly")
    assert str(db) in done.stdout
    assert "writable" in done.stdout
    assert db.read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["x.db"]


# ── files that are damaged ──────────────────────────────────────────────────

#: `make chaos` tries more.
DAMAGES = int(os.environ.get("MAINSPRING_DAMAGES", "30"))


async def filled(db: Path, count: int, wal: Path | None = None) -> list[Event]:
    """Write a store with some history and return its log; with `wal`, the last part stays in the journal only."""
    ms = Mainspring(f"sqlite:///{db}", clock=VirtualClock(1_700_000_000_000))
    task = ms.task(name="t")(lambda text="": None)
    for number in range(count):
        handle = await task.enqueue("x" * 50 * (number % 40))
        if number % 3 == 0:
            await ms.cancel(handle.id)
    await ms.schedule("nightly", "t", cron="0 2 * * *")
    if wal is not None:
        for path in (db, Path(f"{db}-wal")):
            shutil.copy(path, wal / path.name)
    events = await ms.events(limit=100_000)
    await ms.close()
    return events


async def looked_at(db: Path) -> tuple[list[Event], list[str]] | StoreError:
    """Open the store; return its log and the result of `events verify`, or the error."""
    store = SqliteStore(db, VirtualClock(1_700_000_000_000))
    try:
        await store.open()
        if not (report := await verify(store)).ok:
            return [], [str(difference) for difference in report.differences]
        return await store.find(Events(limit=100_000)), []
    except StoreError as error:
        return error
    finally:
        await store.close()


def damage(rng: random.Random, path: Path) -> str:
    """Damage a file in one of the ways in which disks and copies damage files."""
    size = path.stat().st_size
    kind = rng.choice(["header", "flip", "page", "zeros", "cut", "cut page"])
    with path.open("r+b") as file:
        if kind == "cut":
            file.truncate(1 + rng.randrange(size - 1))  # an empty file cannot be told from a new one
        elif kind == "cut page":
            file.truncate(rng.randrange(1, size // 4096) * 4096)
        else:
            at = rng.randrange(100) if kind == "header" else rng.randrange(size)
            at, length = (at // 4096 * 4096, 4096) if kind in ("page", "zeros") else (at, rng.choice([1, 8]))
            length = min(length, size - at)
            file.seek(at)
            file.write(bytes(length) if kind == "zeros" else rng.randbytes(length))
    return kind


@pytest.mark.chaos
@pytest.mark.tampers
@pytest.mark.parametrize("which", ["x.db", "x.db-wal"])
@pytest.mark.timeout(60 + DAMAGES)
def test_a_damaged_file_is_refused_reported_or_a_valid_beginning_and_never_reset(tmp_path: Path, which: str) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    events = asyncio.run(filled(tmp_path / "x.db", 120, whole))
    if which == "x.db":
        shutil.copy(tmp_path / "x.db", whole / "x.db")
        (whole / "x.db-wal").unlink()
    seen: Counter[str] = Counter()
    for seed in range(DAMAGES):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(whole, folder)
        kind = damage(rng, folder / which)
        before = (folder / "x.db").read_bytes()
        found = asyncio.run(looked_at(folder / "x.db"))
        if isinstance(found, StoreError):
            assert str(folder / "x.db") in str(found), (seed, kind, found)
            assert isinstance(found, StoreCorrupt | StoreUnavailable | SchemaMismatch), (seed, kind, repr(found))
            assert which != "x.db" or (folder / "x.db").read_bytes() == before, (seed, kind)
            seen["refused"] += 1
        elif found[1]:
            seen["reported by events verify"] += 1
        else:
            same = list(map(without_log_texts, found[0])) == list(map(without_log_texts, events[: len(found[0])]))
            assert same, (seed, kind, "another history, without an error")
            if which == "x.db":
                assert len(found[0]) == len(events), (seed, kind, "a part is gone, without an error")
            seen["whole" if len(found[0]) == len(events) else "a valid beginning"] += 1
        shutil.rmtree(folder)
    print(which, dict(seen))


def without_log_texts(event: Event) -> Event:
    """Return an event without its texts that no row repeats: who asked for it, and the id of the change that wrote it.

    SQLite keeps no checksums, so `events verify` cannot notice that a letter of such a text changed.
    """
    return replace(event, change=None, **({"by": ""} if hasattr(event, "by") else {}))


class Unreadable(MemoryStore):
    """A store whose log cannot be read."""

    async def tail(self, after: int, limit: int) -> list[Event]:
        raise StoreCorrupt("x.db is damaged")


@pytest.mark.tampers
async def test_a_log_that_cannot_be_read_at_all_ends_the_verification() -> None:
    store = Unreadable()
    await store.open()
    with pytest.raises(StoreCorrupt, match="is damaged"):
        await verify(store)
