"""Mainspring's schedules: adding them, many of them, all at once, one every second."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from bench.contenders.common import Figures, Meter, memory, rate, sorted_ms
from bench.contenders.mainspring_kit import durability_in, open_reader, url_of
from mainspring import Context, Every, Mainspring
from mainspring.app.internals import host_of
from mainspring.ports.clock import SystemClock

#: Number of fires of each schedule per second, ten milliseconds apart.
DUE_PER_SECOND = 100


class ShiftedClock(SystemClock):
    """The machine's clock some hours on, so that one file of schedules serves any number of runs."""

    def __init__(self, shift_ms: int) -> None:
        self.shift = shift_ms

    def now(self) -> int:
        return super().now() + self.shift


class GivenClock:
    """The same for a server's store, which asks the server for the time as long as it is given the machine's clock."""

    def __init__(self, shift_ms: int) -> None:
        clock = ShiftedClock(shift_ms)
        self.shift = shift_ms
        self.now, self.boot, self.monotonic = clock.now, clock.boot, clock.monotonic


def _noon(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _phased(n: int, first_ms: int) -> Iterator[dict[str, Any]]:
    """n schedules of which 100 are due every second from `first_ms` on; in no order, as they are in life."""
    phases = list(range(n))
    random.Random(n).shuffle(phases)
    gap = 1000 // DUE_PER_SECOND
    for phase in phases:
        anchor = _noon(first_ms + phase * gap - n * gap)
        yield {"name": f"schedule-{phase}", "trigger": Every(f"{n * gap}ms", anchor=anchor)}


async def add_schedules(folder: str, n: int, store: str = "sqlite") -> Figures:
    ms = Mainspring(url_of(folder, store))

    @ms.task
    async def nothing() -> None: ...

    durability = await durability_in(ms)
    first = SystemClock().now() + 3_600_000
    meter = Meter()
    await ms.schedule_many(nothing, _phased(n, first))
    figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6, **memory()}
    stored = await _count_schedules(ms, folder)
    await ms.close()
    if stored != n:
        raise SystemExit(f"{stored} of {n} schedules are stored")
    return figures | {"durability": durability, "first_ms": first}


async def _count_schedules(ms: Mainspring, folder: str) -> int:
    async def ask_server(runtime: Any) -> int:
        async with runtime.store._db.session() as session:
            count: int = await session.value("SELECT count(*) FROM §schedule WHERE next_at IS NOT NULL")
            return count

    if ms.url.startswith("postgresql"):
        return await host_of(ms).call(ask_server)
    reader = open_reader(folder)
    count: int = reader.execute("SELECT count(*) FROM schedule WHERE next_at IS NOT NULL").fetchone()[0]
    reader.close()
    return count


@asynccontextmanager
async def _firing(
    folder: str, first_ms: int, lead_ms: int, store: str = "sqlite", slots: int = 10
) -> AsyncIterator[tuple[Mainspring, ShiftedClock | GivenClock, list[Any], float]]:
    """A worker whose clock stands `lead_ms` before the first fire of a file; the fires it makes; how long it took."""
    shift = first_ms - lead_ms - SystemClock().now()
    clock = GivenClock(shift) if "://" in store else ShiftedClock(shift)
    meter = Meter()
    ms = Mainspring(url_of(folder, store), clock=clock, concurrency=slots)
    fires: list[tuple[str, float, float]] = []

    @ms.task(timeout=None)
    async def nothing(ctx: Context) -> None:
        fires.append((ctx.run_id, ctx.fire_time.timestamp(), time.time()))

    async with ms.running():
        yield ms, clock, fires, meter.wall()


async def tick(folder: str, schedules: int, seconds: int, first_ms: int, store: str = "sqlite") -> Figures:
    """100 due in every second of the window: lateness to the handler's first line, CPU, memory, start-up."""
    async with _firing(folder, first_ms, 3_000, store) as (ms, clock, fires, started):
        await asyncio.sleep((first_ms - clock.now() - 20) / 1000)
        meter = Meter()
        await asyncio.sleep(seconds)
        cpu = meter.cpu()
        await asyncio.sleep(1)
        used = memory()
        durability = await durability_in(ms)
    end = first_ms / 1000 + seconds
    late = [now + clock.shift / 1000 - fire for _, fire, now in fires if fire < end]
    return {
        "schedules": schedules,
        "expected": seconds * DUE_PER_SECOND,
        "fires": len(late),
        "doubled": len(late) - len({fire for _, fire, _ in fires if fire < end}),
        "ms": sorted_ms(late),
        "cpu_us": cpu / (seconds * DUE_PER_SECOND) * 1e6,
        "start_seconds": started,
        "durability": durability,
        **used,
    }


async def prepare_herd(folder: str, n: int) -> Figures:
    ms = Mainspring(url_of(folder))

    @ms.task(timeout=None)
    async def nothing(ctx: Context) -> None: ...

    first = (SystemClock().now() // 1000 + 3_600) * 1000
    await ms.schedule_many(nothing, ({"name": f"herd-{i}", "at": _noon(first)} for i in range(n)))
    await ms.close()
    return {"n": n, "first_ms": first}


async def herd(folder: str, n: int, first_ms: int, slots: int = 10) -> Figures:
    """All due at the same instant."""
    async with _firing(folder, first_ms, 2_000, slots=slots) as (ms, clock, fires, _):
        await asyncio.sleep((first_ms - clock.now()) / 1000)
        meter = Meter()
        while len(fires) < n and meter.wall() < 30:  # noqa: ASYNC110 - a deadline, then what came in time
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        durability = await durability_in(ms)
    ids = {run_id for run_id, _, _ in fires}
    last = max((now + clock.shift / 1000 - first_ms / 1000 for _, _, now in fires), default=99.0)
    return {
        "n": n,
        "fires": len(ids),
        "dropped": n - len(ids),
        "doubled": len(fires) - len(ids),
        "last_seconds": last,
        "durability": durability,
    }


async def cron(folder: str, seconds: int) -> Figures:
    """An every-second cron, nothing else to do."""
    ms = Mainspring(url_of(folder))
    fires: list[tuple[float, float]] = []

    @ms.cron("* * * * * *")
    async def second(ctx: Context) -> None:
        fires.append((ctx.fire_time.timestamp(), time.time()))

    async with ms.running():
        begin = int(time.time()) + 1
        meter = Meter()
        await asyncio.sleep(begin + seconds + 0.5 - time.time())
        cpu = meter.cpu()
        durability = await durability_in(ms)
    seen = [(fire, now) for fire, now in fires if begin < fire <= begin + seconds]
    return {
        "expected": seconds,
        "fires": len({fire for fire, _ in seen}),
        "doubled": len(seen) - len({fire for fire, _ in seen}),
        "ms": sorted_ms(now - fire for fire, now in seen),
        "cpu_us": cpu / seconds * 1e6,
        "durability": durability,
    }
