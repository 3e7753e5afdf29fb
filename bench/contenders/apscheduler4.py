"""APScheduler 4 (pre-release) with its SQLAlchemy data store on aiosqlite, or its memory store."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler import AsyncScheduler
from apscheduler.datastores.memory import MemoryDataStore
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from bench.contenders.common import Figures, Meter, durable, main, path_in, rate

_left = 0
_all_ran = asyncio.Event()
_durabilities: set[str] = set()


async def nothing() -> None:
    global _left
    _left -= 1
    if _left == 0:
        _all_ran.set()


def _on_connect(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -16384"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.execute("PRAGMA journal_mode")
    mode = cursor.fetchone()[0]
    cursor.execute("PRAGMA synchronous")
    _durabilities.add(durable(mode, cursor.fetchone()[0]))
    cursor.close()


def _data_store(folder: str, kind: str) -> Any:
    if kind == "memory":
        return MemoryDataStore()
    engine = create_async_engine("sqlite+aiosqlite:///" + path_in(folder, "apscheduler.db"))
    event.listen(engine.sync_engine, "connect", _on_connect)
    return SQLAlchemyDataStore(engine)


def _durability(kind: str) -> str:
    return "none (memory)" if kind == "memory" else _durabilities.pop()


async def _drain(folder: str, n: int, store: str) -> Figures:
    global _left
    _left = n
    data = _data_store(folder, store)
    async with AsyncScheduler(data) as scheduler:
        await scheduler.configure_task("nothing", func=nothing, max_running_jobs=1000)
        meter = Meter()
        for _ in range(n):
            await scheduler.add_job("nothing")
        filled = meter.wall()
        meter = Meter()
        await scheduler.start_in_background()
        async with asyncio.timeout(200):
            await _all_ran.wait()
            await _let_go(folder, store, data)
        seconds, cpu = meter.wall(), meter.cpu()
        await scheduler.stop()
    return {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "fill_per_second": rate(n, filled),
        "durability": _durability(store),
    }


async def _let_go(folder: str, kind: str, data: Any) -> None:
    """All have run; wait until the store holds none of them any more."""
    if kind == "memory":
        while await data.get_jobs():  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.001)
        return
    reader = sqlite3.connect(path_in(folder, "apscheduler.db"))
    while reader.execute("SELECT EXISTS (SELECT 1 FROM jobs)").fetchone()[0]:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    reader.close()


async def _add_schedules(folder: str, n: int) -> Figures:
    first = datetime.now(UTC) + timedelta(hours=1)
    async with AsyncScheduler(_data_store(folder, "sqlite")) as scheduler:
        await scheduler.configure_task("nothing", func=nothing, max_running_jobs=1000)
        meter = Meter()
        for number in range(n):
            start = first + timedelta(milliseconds=10 * number)
            await scheduler.add_schedule(
                "nothing", IntervalTrigger(seconds=max(1, n // 100), start_time=start), id=f"schedule-{number}"
            )
        figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    return figures | {"durability": _durability("sqlite")}


def _run(work: Any) -> Figures:
    """aiosqlite's threads may outlive the loop; what is measured is over then."""
    figures: Figures = asyncio.run(work)
    return figures


if __name__ == "__main__":
    main(
        {
            "drain": lambda folder, n, store="sqlite": _run(_drain(folder, n, store)),
            "add_schedules": lambda folder, n: _run(_add_schedules(folder, n)),
        }
    )
    os._exit(0)
