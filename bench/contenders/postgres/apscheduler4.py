"""APScheduler 4 (pre-release) with its SQLAlchemy data store on asyncpg: its schedules."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler import AsyncScheduler
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from bench.contenders.common import SETTINGS, Figures, Meter, committed, main, memory, sorted_ms

DUE_PER_SECOND = 100
#: Least number of schedules that are added before the time for the others is estimated.
TRIED = 200
_fires: list[tuple[int, float]] = []


async def nothing(number: int) -> None:
    _fires.append((number, time.time()))


async def _durability(engine: Any) -> str:
    async with engine.connect() as connection:
        return committed(*(await connection.execute(text(SETTINGS))).fetchone())


async def _add(scheduler: Any, numbers: range, first: datetime, interval: float) -> None:
    for number in numbers:
        start = first + timedelta(seconds=number / DUE_PER_SECOND)
        await scheduler.add_schedule(
            "nothing", IntervalTrigger(seconds=interval, start_time=start), args=(number,), id=f"schedule-{number}"
        )


async def _tick(url: str, schedules: int, seconds: int, **_: Any) -> Figures:
    """100 due in every second; those that are not due in the window were added first, an hour away.

    How long an addition takes is tried out first, so that the first fire comes after the last of them.
    """
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
    interval = schedules / DUE_PER_SECOND
    near = min(schedules, (seconds + 2) * DUE_PER_SECOND)
    async with AsyncScheduler(SQLAlchemyDataStore(engine)) as scheduler:
        await scheduler.configure_task("nothing", func=nothing, max_running_jobs=1000)
        durability = await _durability(engine)
        meter = Meter()
        far = range(near, max(schedules, near + TRIED))
        await _add(scheduler, far, datetime.now(UTC) + timedelta(hours=1), interval)
        first = datetime.now(UTC) + timedelta(seconds=3 + near * 2 * meter.wall() / len(far))
        await _add(scheduler, range(near), first, interval)
        in_time = datetime.now(UTC) < first - timedelta(seconds=1)
        meter = Meter()
        await scheduler.start_in_background()
        started = meter.wall()
        await asyncio.sleep(max(0.0, (first - datetime.now(UTC)).total_seconds() - 0.02))
        meter = Meter()
        await asyncio.sleep(seconds)
        cpu, made = meter.cpu(), len(_fires)
        await asyncio.sleep(1)
        occupied = memory()
        await scheduler.stop()
    if not in_time:
        raise SystemExit("adding the schedules took longer than foreseen; the machine is busy with something else")
    begin = first.timestamp()
    late = []
    for number, now in _fires:
        planned = begin + number / DUE_PER_SECOND
        planned += max(0, int((now - planned) / interval)) * interval
        if planned < begin + seconds:
            late.append(now - planned)
    if not made:
        raise SystemExit("nothing fired")
    return {
        "schedules": schedules,
        "expected": seconds * DUE_PER_SECOND,
        "fires": len(late),
        "ms": sorted_ms(late),
        "cpu_us": cpu / made * 1e6,  # of the fires it made: it does not keep up
        "start_seconds": started,
        "durability": durability,
        **occupied,
    }


if __name__ == "__main__":
    main({"tick": lambda **p: asyncio.run(_tick(**p))})
    os._exit(0)
