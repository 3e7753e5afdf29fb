"""python disk_app.py FOLDER FAULT: a program whose disk fails in the middle of its work and then recovers.

The program enqueues and plans without a pause, logs every call and every acknowledged enqueue, meets the fault, lets
the disk recover without a restart, finishes the remaining runs and stops. FAULT: pages, limit, ballast, read_only,
io_error.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # a script finds the repository by itself

from mainspring import Context, Mainspring
from mainspring.app.internals import host_of
from mainspring.backends.sqlite import SqliteStore
from mainspring.model.errors import StoreUnavailable
from tests.system.nodes import CallLog

folder, fault = Path(sys.argv[1]), sys.argv[2]
db = folder / "x.db"
log = CallLog(Path(sys.argv[3]) if len(sys.argv) > 3 else folder / "calls")
failing = False


def failpoint(name: str) -> None:
    if failing and name.endswith(":before_commit"):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error


store = SqliteStore(db, failpoint=failpoint)
ms = Mainspring(store=store, lease_ttl="3s", poll_interval="100ms", concurrency=20)


@ms.task
async def work(ctx: Context, ballast: str = "") -> int:
    with log.call(ctx):
        return len(ballast)


ms.every("50ms", name="often", missed="replay_all", overlap="allow_parallel")(work)


def pages(broken: bool) -> None:
    count = store._db.value("PRAGMA page_count")
    store._db.run(f"PRAGMA max_page_count = {count if broken else 1_000_000}")


def limit(broken: bool) -> None:
    """Forbid files to grow: every longer write fails with an error of the system."""
    size = max(path.stat().st_size for path in folder.glob("x.db*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1 if broken else resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def ballast(broken: bool) -> None:
    """Fill a small disk to its last byte."""
    path = folder / "ballast"
    if not broken:
        path.unlink()
        return
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


def read_only(broken: bool) -> None:
    store._db.run(f"PRAGMA query_only = {'ON' if broken else 'OFF'}")


def io_error(broken: bool) -> None:
    global failing
    failing = broken


FAULTS: dict[str, Callable[[bool], None]] = {
    "pages": pages,
    "limit": limit,
    "ballast": ballast,
    "read_only": read_only,
    "io_error": io_error,
}


async def main() -> None:
    acknowledged = 0
    refused: list[str] = []

    async def enqueue() -> None:
        nonlocal acknowledged
        number = 0
        while True:
            number += 1
            try:
                handle = await work.enqueue(f"{number} " + "x" * 3_000)
                log.say("acknowledged", handle.id)
                acknowledged += 1
            except StoreUnavailable as error:
                refused.append(str(error))
            await asyncio.sleep(0.005)

    async def until(fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not fact():  # noqa: ASYNC110 - files and counts signal nothing
                await asyncio.sleep(0.01)

    async with ms.running():
        busy = asyncio.ensure_future(enqueue())
        await until(lambda: acknowledged >= 30 and log.count("end") >= 30)
        loop = host_of(ms).engine
        loop.post(FAULTS[fault], True)
        await until(lambda: len(refused) >= 10)
        loop.post(FAULTS[fault], False)
        goal, done = acknowledged + 30, log.count("end") + 30
        await until(lambda: acknowledged >= goal and log.count("end") >= done)
        busy.cancel()
        await ms.pause("often")
        for _ in range(3_000):
            if not await ms.find_by_status("running") and not await ms.find_by_status("waiting"):
                break
            await asyncio.sleep(0.01)
    says = sorted(set(refused))
    print(acknowledged, len(refused), says[0], sep="\n")
    assert all(str(db) in text for text in says), says
    os._exit(0)


asyncio.run(main())
