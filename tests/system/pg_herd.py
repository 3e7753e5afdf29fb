"""A herd: schedules that are all due at one instant, on two instances in processes of their own.

python pg_herd.py URL [--schedules N]       a line of JSON; exit code 1 and the reasons when something is not right
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))  # a script finds the repository by itself

from mainspring import Context, Mainspring
from mainspring.backends.postgres import PostgresStore
from tests.system.nodes import CallLog, fork, judge, tell_where_it_hangs, wait, wait_until
from tests.system.pg_watch import Watch

NODES = ("one", "two")
POOL = 4
#: Seconds for all of them to run, on a machine that may be busy.
HERD_SECONDS = 300.0
#: How late each fire was planned, and how late its run was claimed, by the server's own log.
_LATE = """
SELECT min(b.at) - r.fire_time AS planned, min(s.at) - r.fire_time AS started
FROM §run r JOIN §event b ON b.run_id = r.id AND b.type = 'RunScheduled'
JOIN §event s ON s.run_id = r.id AND s.type = 'RunStarted' GROUP BY r.id, r.fire_time
"""
_ENDED = "SELECT count(*) FROM §run WHERE state = 'succeeded'"


def application(url: str, folder: Path, name: str) -> tuple[Mainspring, Any]:
    """Build the application of one process; its connections carry the name."""
    log = CallLog(folder / "calls")
    ms = Mainspring(f"{url}&pool={POOL}&application_name={name}", name="herd", concurrency=50)

    @ms.task(timeout=None)
    async def graze(ctx: Context) -> None:
        with log.call(ctx):
            pass

    return ms, graze


def node(url: str, folder: Path, name: str) -> int:
    """Run an instance in a child process until SIGTERM."""
    tell_where_it_hangs()
    ms, _ = application(url, folder, name)

    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with ms.running():
            (folder / f"{name}.up").touch()
            await stop.wait()
        await ms.close()

    asyncio.run(main())
    return 0


async def register(url: str, folder: Path, count: int) -> tuple[int, float]:
    """Store all schedules for one instant; return it in milliseconds, and the seconds left until it."""
    ms, graze = application(url, folder, "shepherd")
    at = int(time.time() + 2.5 + count / 1_000)
    when = datetime.fromtimestamp(at, UTC)
    stored = await ms.schedule_many(graze, ({"name": f"sheep {number}", "at": when} for number in range(count)))
    left = at - time.time()
    assert stored == count
    await ms.close()
    return at * 1000, left


async def watch_until_ended(url: str, log: CallLog, at: int, count: int) -> tuple[Watch, float]:
    """Watch the server until all runs ended; return the watch, and the seconds from the instant to the last end."""
    store = PostgresStore(f"{url}&application_name=judge")
    await store.open()
    async with Watch(store, pause=0.05) as watch, asyncio.timeout(HERD_SECONDS + at / 1000 - time.time()):
        ended = 0
        while ended < count:
            await asyncio.sleep(0.05)
            if log.count("end") >= count:  # counting rows all the time would slow the server down
                async with store._db.read_only() as session:
                    ended = await session.value(_ENDED)
    last = time.time() - at / 1000
    await store.close()
    return watch, last


async def measure_lateness(url: str) -> tuple[list[int], list[int]]:
    store = PostgresStore(url)
    await store.open()
    async with store._db.read_only() as session:
        rows = await session.fetch(_LATE)
    await store.close()
    return sorted(row["planned"] for row in rows), sorted(row["started"] for row in rows)


def herd(url: str, folder: Path, count: int) -> list[str]:
    """Run the herd, print its figures, and return what is wrong."""
    pids = [fork(partial(node, url, folder, name), folder / f"{name}.txt") for name in NODES]
    try:
        wait_until(lambda: all((folder / f"{name}.up").exists() for name in NODES), 60, "both instances are up")
        at, left = asyncio.run(register(url, folder, count))
        watch, last = asyncio.run(watch_until_ended(url, CallLog(folder / "calls"), at, count))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        codes = [wait(pid) for pid in pids]
    wrong, counts = judge(url, CallLog(folder / "calls"), late=int(HERD_SECONDS * 1000))
    planned, started = asyncio.run(measure_lateness(url))
    calls = CallLog(folder / "calls").calls()
    figures = {
        "schedules": count,
        "runs": counts["RunScheduled"],
        "calls": len(calls),
        "by": sorted(sum(call.node == str(pid) for call in calls) for pid in pids),
        "connections": {name: watch.connections[name] for name in NODES},
        "looks": watch.seen,
        "stored_before_s": round(left, 1),
        "planned_ms": _spread(planned),
        "started_ms": _spread(started),
        "all_ended_s": round(last, 2),
    }
    print(json.dumps(figures), flush=True)
    if codes != [0, 0]:
        wrong.append(f"exit codes {codes}: " + "".join((folder / f"{name}.txt").read_text() for name in NODES)[-2_000:])
    if not counts["RunScheduled"] == counts["RunStarted"] == counts["RunSucceeded"] == len(started) == count:
        wrong.append(f"not {count} runs, each started once and ended once: {counts}")
    if sorted({call.run_id for call in calls}) != sorted(call.run_id for call in calls) or len(calls) != count:
        wrong.append(f"{len(calls)} calls of {len({call.run_id for call in calls})} runs")
    if min(planned) < 0:
        wrong.append(f"planned {-min(planned)} ms before its time")
    for name in NODES:
        if not 1 <= watch.connections[name] <= POOL + 1:  # one more that listens
            wrong.append(f"instance {name} had {watch.connections[name]} connections, {POOL} and 1 are allowed")
    return wrong


def _spread(values: list[int]) -> dict[str, int]:
    return {
        "p50": values[len(values) // 2],
        "p99": values[min(len(values) - 1, len(values) * 99 // 100)],
        "max": values[-1],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--schedules", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pg-herd-") as name:
        wrong = herd(options.url, Path(name), options.schedules)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
