"""APScheduler 3 on SQLite (SQLAlchemy job store; WAL and synchronous=FULL by an engine hook) or on its memory store."""

from __future__ import annotations

import itertools
import logging
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import create_engine, event

from bench.contenders.common import (
    Figures,
    Meter,
    durability_of,
    main,
    memory,
    path_in,
    rate,
    sorted_ms,
    wait_until,
)

logging.getLogger("apscheduler").setLevel(logging.ERROR)  # a warning for every missed job would be measured too

DUE_PER_SECOND = 100
_numbers = itertools.count(1)
_last = 0
_done = False
_fires: list[tuple[int, float]] = []


def nothing() -> None:
    """A job; jobs are stored by reference, so it is a function of this module."""
    global _done
    if next(_numbers) == _last:
        _done = True


def note(number: int) -> None:
    """A job that knows which one it is."""
    _fires.append((number, time.time()))


class Store:
    """A scheduler, paused, and how many jobs its store holds."""

    def __init__(self, folder: str, kind: str = "sqlite") -> None:
        self._durabilities: set[str] = set()
        if kind == "memory":
            store: Any = MemoryJobStore()
            self.jobs: Callable[[], int] = lambda: len(store._jobs)
            self.durability = "none (memory)"
        else:
            path = path_in(folder, "apscheduler.db")
            engine = create_engine(f"sqlite:///{path}")
            event.listen(engine, "connect", self._on_connect)
            store = SQLAlchemyJobStore(engine=engine)
            self._path = path
            self.jobs = self._count
            with engine.connect():
                pass
            self.durability = self._durabilities.pop()
        self.scheduler = BackgroundScheduler(jobstores={"default": store}, timezone=UTC)
        self.scheduler.start(paused=True)

    def _on_connect(self, connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -16384")
        self._durabilities.add(durability_of(connection))

    def _count(self) -> int:
        reader = sqlite3.connect(self._path)
        try:
            return int(reader.execute("SELECT count(*) FROM apscheduler_jobs").fetchone()[0])
        finally:
            reader.close()


def drain(folder: str, n: int, store: str = "sqlite") -> Figures:
    """Jobs of one date that is past; the end is when all have run and the store has let go of the last."""
    global _last
    _last = n
    used = Store(folder, store)
    now = datetime.now(UTC)
    meter = Meter()
    for _ in range(n):
        used.scheduler.add_job(nothing, "date", run_date=now, misfire_grace_time=None)
    filled = meter.wall()
    meter = Meter()
    used.scheduler.resume()
    wait_until(lambda: _done, 200)
    wait_until(lambda: used.jobs() == 0, 200, 0.002)
    seconds, cpu = meter.wall(), meter.cpu()
    used.scheduler.shutdown()
    return {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "fill_per_second": rate(n, filled),
        "durability": used.durability,
    }


def enqueue_one(folder: str, n: int) -> Figures:
    used = Store(folder)
    now = datetime.now(UTC)
    meter = Meter()
    for _ in range(n):
        used.scheduler.add_job(nothing, "date", run_date=now, misfire_grace_time=None)
    figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    used.scheduler.shutdown()
    return figures | {"durability": used.durability}


def _add_every(used: Store, numbers: range, first: datetime, seconds: float) -> None:
    for i, number in enumerate(numbers):
        start = first + timedelta(seconds=i / DUE_PER_SECOND)
        used.scheduler.add_job(
            note, "interval", seconds=seconds, start_date=start, args=(number,), id=f"schedule-{number}"
        )


def add_schedules(folder: str, n: int) -> Figures:
    used = Store(folder)
    meter = Meter()
    _add_every(used, range(n), datetime.now(UTC) + timedelta(hours=1), n / DUE_PER_SECOND)
    figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    stored = used.jobs()
    used.scheduler.shutdown()
    if stored != n:
        raise SystemExit(f"{stored} of {n} schedules are stored")
    return figures | {"durability": used.durability}


def tick(folder: str, schedules: int, seconds: int) -> Figures:
    """100 due in every second; those that are not due in the window were added first, an hour away."""
    used = Store(folder)
    near = min(schedules, (seconds + 2) * DUE_PER_SECOND)
    interval = schedules / DUE_PER_SECOND
    meter = Meter()
    _add_every(used, range(near, schedules), datetime.now(UTC) + timedelta(hours=1), interval)
    each = meter.wall() / max(1, schedules - near) if schedules > near else 0.003
    first = datetime.now(UTC) + timedelta(seconds=3 + near * each * 1.5)
    _add_every(used, range(near), first, interval)
    if datetime.now(UTC) > first - timedelta(seconds=1):
        raise SystemExit("adding the schedules took longer than foreseen; the machine is busy with something else")
    meter = Meter()
    used.scheduler.resume()
    started = meter.wall()
    time.sleep((first - datetime.now(UTC)).total_seconds() - 0.02)
    meter = Meter()
    time.sleep(seconds)
    cpu = meter.cpu()
    time.sleep(1)
    occupied = memory()
    used.scheduler.shutdown(wait=False)
    begin = first.timestamp()
    late = []
    for number, now in _fires:
        planned = begin + number / DUE_PER_SECOND
        planned += max(0, int((now - planned) / interval)) * interval
        if planned < begin + seconds:
            late.append(now - planned)
    return {
        "schedules": schedules,
        "expected": seconds * DUE_PER_SECOND,
        "fires": len(late),
        "ms": sorted_ms(late),
        "cpu_us": cpu / (seconds * DUE_PER_SECOND) * 1e6,
        "start_seconds": started,
        "durability": used.durability,
        **occupied,
    }


def herd(folder: str, n: int) -> Figures:
    """All due at the same instant, default settings: what is later than its grace of one second is dropped."""
    used = Store(folder)
    first = datetime.now(UTC) + timedelta(seconds=3 + n * 0.006)
    for number in range(n):
        used.scheduler.add_job(note, "date", run_date=first, args=(number,))
    left = (first - datetime.now(UTC)).total_seconds()
    if left < 0.5:
        raise SystemExit("adding the jobs took longer than foreseen; the machine is busy with something else")
    time.sleep(left - 0.5)
    used.scheduler.resume()
    wait_until(lambda: used.jobs() == 0, 120, 0.05)
    time.sleep(0.5)
    used.scheduler.shutdown()
    seen = {number for number, _ in _fires}
    return {
        "n": n,
        "fires": len(seen),
        "dropped": n - len(seen),
        "doubled": len(_fires) - len(seen),
        "last_seconds": max((now - first.timestamp() for _, now in _fires), default=0.0),
        "durability": used.durability,
    }


def cron(folder: str, seconds: int) -> Figures:
    used = Store(folder)
    used.scheduler.add_job(note, "cron", second="*", args=(0,))
    used.scheduler.resume()
    begin = int(time.time()) + 1
    time.sleep(begin + seconds + 0.5 - time.time())
    used.scheduler.shutdown()
    seen = [(round(now - 0.4), now) for _, now in _fires]  # it does not say which second it is for
    seen = [(fire, now) for fire, now in seen if begin < fire <= begin + seconds]
    return {
        "expected": seconds,
        "fires": len({fire for fire, _ in seen}),
        "doubled": len(seen) - len({fire for fire, _ in seen}),
        "ms": sorted_ms(now - fire for fire, now in seen),
        "durability": used.durability,
    }


if __name__ == "__main__":
    main(
        {
            "drain": drain,
            "enqueue_one": enqueue_one,
            "add_schedules": add_schedules,
            "tick": tick,
            "herd": herd,
            "cron": cron,
        }
    )
