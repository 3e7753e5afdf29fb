"""python soak.py --seconds 600: work with failures, restarts and retention, in which no resource may grow.
One process works all the time and is measured. A second one is started and stopped repeatedly, with schedules that live
as long as it does. Measured are memory, threads, files and tables. Exit code 1 if something grows, with the reasons.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

sys.path.append(str(Path(__file__).parents[2]))  # a script finds the repository by itself

from mainspring import Context, Mainspring, Retry, StoreError
from mainspring.app.internals import host_of
from mainspring.backends.sqlite import SqliteStore
from mainspring.ledger.verify import verify
from tests.system.nodes import CallLog, fork, tell_where_it_hangs, wait, wait_until

SLOTS = 8
#: Milliseconds beyond its retention for which a row may stay: the keeper purges every half second.
OVERDUE_AFTER = 5_000
ORPHANS = """
SELECT count(*) FROM body b WHERE NOT EXISTS (SELECT 1 FROM run WHERE body = b.id)
                              AND NOT EXISTS (SELECT 1 FROM schedule WHERE body = b.id)
"""
TABLES = ("event", "run", "schedule", "span", "body", "gate", "lease", "tally")


def node(folder: Path, history: str, guest: bool) -> int:
    """In a child: plan, enqueue, fail now and then; with `guest`, create schedules of its own and delete them."""
    tell_where_it_hangs()
    log = CallLog(folder / "calls")
    ms = Mainspring(
        f"sqlite:///{folder / 'x.db'}",
        name="guest" if guest else "host",
        history=history,
        lease_ttl="1500ms",
        poll_interval="250ms",
        concurrency=SLOTS,
    )
    # Past instances are kept as long as the history.
    host_of(ms).configure(settings=replace(ms.settings, undeclared_after=ms.settings.history))
    again = Retry(max_attempts=4, initial="50ms", jitter=0)

    @ms.task(retry=again)
    async def work(ctx: Context, ballast: str = "") -> str:
        if ctx.attempt == 1 and random.random() < 0.1:
            raise ValueError("one in ten fails at first")
        await asyncio.sleep(0.01)
        return ballast[:10]

    @ms.task(retry=again)
    def thread(ctx: Context, ballast: str = "") -> None:
        time.sleep(0.01)

    if not guest:
        for index, task in enumerate((work, work, thread, work)):
            overlap = ("allow_parallel", "forbid", "allow_parallel", "queue_all")[index]
            ms.every("100ms", name=f"steady-{index}", missed="replay_all", overlap=overlap)(task)  # type: ignore[arg-type]

    async def main() -> None:
        running = asyncio.ensure_future(ms.run_async())
        number = 0
        if guest:
            for index in range(3):
                await ms.schedule(f"guest-{os.getpid()}-{index}", work, every="200ms", overlap="queue_all")
        while not running.done():
            number += 1
            with contextlib.suppress(StoreError):
                await (work, thread)[number % 2].enqueue(f"{os.getpid()} {number} " + "x" * 200)
                log.say("enqueued")
            await asyncio.wait([running], timeout=0.05)
            if guest and number == 30:
                for index in range(3):
                    await ms.delete(f"guest-{os.getpid()}-{index}")
                log.say("guest", os.getpid())
        await running

    asyncio.run(main())
    return 0


def sample(folder: Path, pid: int, history: int) -> dict[str, int]:
    """Measure the process and the file; `overdue` counts rows beyond the history, `orphans` payloads without a user."""
    status = Path(f"/proc/{pid}/status").read_text()
    words = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if ":" in line and line.split()[1:]}
    found = {
        "rss_kb": int(words["VmRSS"]),
        "threads": int(words["Threads"]),
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
        "wal_kb": (folder / "x.db-wal").stat().st_size // 1024,
    }
    connection = sqlite3.connect(folder / "x.db")
    try:
        # All pages, also those that no checkpoint has moved from the WAL into the file: before the first checkpoint,
        # the file itself has one page.
        pages, page_bytes = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        found["data_kb"] = pages * page_bytes // 1024
        late = time.time_ns() // 1_000_000 - history - OVERDUE_AFTER
        found["overdue"] = connection.execute("SELECT count(*) FROM run WHERE ended_at < ?", (late,)).fetchone()[0]
        found["orphans"] = connection.execute(ORPHANS).fetchone()[0]
        for table in TABLES:
            found[table] = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    finally:
        connection.close()
    return found


#: Growth allowed from the second to the last third of the samples: a fraction, and an amount. Loose for a short soak.
#: The number of rows follows the speed of the machine, so their age is limited as well (`overdue`).
NONE = (0.0, 0)
STEADY = {"threads": (0.0, SLOTS), "fds": (0.0, 3), "wal_kb": (0.0, 20_480), "overdue": (0.0, 20), "orphans": NONE}
LONG = STEADY | {"rss_kb": (0.03, 2_048), "data_kb": (0.25, 512), "event": (0.5, 0), "run": (0.5, 0), "body": (0.5, 0)}
SHORT = STEADY | {"rss_kb": (0.15, 8_192)}
ROWS = (0.10, 20)
ROWS_SHORT = (0.60, 300)


def judge(samples: list[dict[str, int]], short: bool) -> list[str]:
    """Compare the medians of the second third of the samples with those of the last; return what grew."""
    wrong: list[str] = []
    third = len(samples) // 3
    print(f"{'':>10} {'first':>9} {'second':>9} {'last':>9} {'allowed':>9}")
    for key in samples[0]:
        first, second, last = (
            statistics.median(one[key] for one in part)
            for part in (samples[:third], samples[third : 2 * third], samples[2 * third :])
        )
        share, amount = (SHORT if short else LONG).get(key, ROWS_SHORT if short else ROWS)
        allowed = second * (1 + share) + amount
        print(
            f"{key:>10} {first:>9.0f} {second:>9.0f} {last:>9.0f} {allowed:>9.0f}{'  GREW' if last > allowed else ''}"
        )
        if last > allowed:
            wrong.append(f"{key} grew from {second:.0f} to {last:.0f}")
    return wrong


async def verified(db: Path) -> list[str]:
    store = SqliteStore(db)
    await store.open()
    try:
        return [str(difference) for difference in (await verify(store)).differences]
    finally:
        await store.close()


def soak(folder: Path, seconds: float) -> list[str]:
    """Run both processes, take samples, and return what grew or broke."""
    kept = max(2, min(30, round(seconds / 8)))
    history = f"{kept}s"
    said = folder / "nodes.txt"
    log = CallLog(folder / "calls")
    host = fork(lambda: node(folder, history, False), said)
    samples: list[dict[str, int]] = []
    guests = 0
    guest = 0
    try:
        wait_until(lambda: log.count("said") > 5, 30, "work begins")
        began = time.monotonic()
        pause = max(0.25, seconds / 120)
        while time.monotonic() - began < seconds:
            if not guest:
                guest, guests = fork(lambda: node(folder, history, True), said), guests + 1
            time.sleep(pause)
            samples.append(sample(folder, host, kept * 1_000))
            if ["guest", str(guest)] in log.said():
                os.kill(guest, signal.SIGTERM)
                assert wait(guest, 30) == 0
                guest = 0
            if len(samples) % 12 == 0:
                print(f"{time.monotonic() - began:>6.0f} s", samples[-1], flush=True)
    finally:
        for pid in filter(None, (host, guest)):
            os.kill(pid, signal.SIGTERM)
        codes = [wait(pid, 30) for pid in filter(None, (host, guest))]
    print(f"{len(samples)} samples, {guests} guests, {log.count('said')} enqueued, history {history}")
    wrong = judge(samples, seconds < 120)
    wrong += [f"a process ended with {code}" for code in codes if code]
    wrong += asyncio.run(verified(folder / "x.db"))
    if wrong:
        print(said.read_text()[-3_000:])
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        wrong = soak(Path(name), options.seconds)
    for line in wrong:
        print(line)
    print(f"{len(wrong)} things grew or broke")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
