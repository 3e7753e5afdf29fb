"""Mainspring on PostgreSQL, through its public door; defaults unless a scenario says otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.contenders import mainspring_ as embedded
from bench.contenders import mainspring_schedules as schedules
from bench.contenders.common import Figures, Meter, main, memory, rate
from bench.contenders.mainspring_ import DRAIN_CONCURRENCY
from bench.contenders.mainspring_kit import durability_in
from bench.contenders.postgres.drivers import Asyncpg, until_none
from bench.contenders.postgres.workers import Tally, race, ready, spin, told
from mainspring import Context, Mainspring

MODULE = "bench.contenders.postgres.mainspring_"
#: By the partial indexes on open states.
OPEN = """
SELECT 1 FROM mainspring.run WHERE state = 'running'
UNION ALL SELECT 1 FROM mainspring.run WHERE state IN ('waiting', 'retrying') AND parked_on IS NULL
"""


class Counter:
    """A no-op task that knows when it has run for the last time."""

    def __init__(self, ms: Mainspring) -> None:
        self.left = 0
        self.done = asyncio.Event()

        @ms.task(timeout=None)
        async def nothing() -> None:
            self.left -= 1
            if not self.left:
                self.done.set()

        self.task = nothing

    async def enqueue(self, n: int) -> None:
        self.left = n
        self.done.clear()
        await self.task.enqueue_many(() for _ in range(n))


async def _drain(url: str, n: int, earlier: int = 0, held: bool = False, **_: Any) -> Figures:
    """Enqueue in bulk, then start a worker; the end is the commit of the last outcome.

    `earlier`: number of runs drained before; `held`: keep a snapshot open that is older than those runs.
    """
    look = await Asyncpg.connect(url)
    ms = Mainspring(url, concurrency=DRAIN_CONCURRENCY)
    counter = Counter(ms)
    durability = await durability_in(ms)
    old = await Asyncpg.connect(url)
    if held:
        await old.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await old.value("SELECT count(*) FROM mainspring.run")
    if earlier:
        await counter.enqueue(earlier)
        async with ms.running():
            await counter.done.wait()
            await until_none(look, OPEN)
    meter = Meter()
    await counter.enqueue(n)
    filled = meter.wall()
    meter = Meter()
    async with ms.running():
        await counter.done.wait()
        await until_none(look, OPEN)
        seconds, cpu = meter.wall(), meter.cpu()
    events = await check_ended(look, n + earlier)
    await old.close()
    await look.close()
    await ms.close()
    return {
        "n": n,
        "earlier": earlier,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "fill_per_second": rate(n, filled),
        "events": events,
        "durability": durability,
        "concurrency": DRAIN_CONCURRENCY,
        **memory(),
    }


async def check_ended(look: Asyncpg, n: int) -> int:
    succeeded = await look.value("SELECT count(*) FROM mainspring.run WHERE state = 'succeeded' AND attempt = 1")
    events: int = await look.value("SELECT count(*) FROM mainspring.event WHERE run_id IS NOT NULL AND n IS NOT NULL")
    if succeeded != n or events != 3 * n:
        raise SystemExit(f"of {n} runs {succeeded} succeeded at the first attempt, with {events} events")
    return events


# ── several worker processes ────────────────────────────────────────────────


async def _workers(url: str, folder: str, n: int, processes: int, cpu_ms: float = 0) -> Figures:
    look = await Asyncpg.connect(url)
    ms = Mainspring(url)
    counter = Counter(ms)
    durability = await durability_in(ms)
    await counter.enqueue(n)
    await ms.close()
    figures = await race(
        MODULE, folder, n, processes, {"url": url, "cpu_ms": cpu_ms}, lambda: until_none(look, OPEN, timeout=60)
    )
    await check_ended(look, n)
    await look.close()
    return figures | {"durability": durability, "cpu_ms": cpu_ms}


async def _worker(url: str, folder: str, place: int, cpu_ms: float) -> Figures:
    tally = Tally(folder, place)
    # A handler that computes holds its loop: more of them at once would only take them from the other worker.
    ms = Mainspring(url) if cpu_ms else Mainspring(url, concurrency=DRAIN_CONCURRENCY)

    @ms.task(timeout=None)
    async def nothing(ctx: Context) -> None:
        spin(cpu_ms)
        tally.add(ctx.run_id)

    await durability_in(ms)  # opens the store, as the peers have opened theirs
    meter = await ready()
    async with ms.running():
        await told()
        cpu = meter.cpu()
    await ms.close()
    tally.save()
    return {"cpu": cpu}


if __name__ == "__main__":
    main(
        {
            "drain": lambda **p: asyncio.run(_drain(**p)),
            "workers": lambda **p: asyncio.run(_workers(**p)),
            "worker": lambda **p: asyncio.run(_worker(**p)),
            "enqueue_one": lambda folder, url, n: asyncio.run(embedded.enqueue_one(folder, n, url)),
            "enqueue_coroutines": lambda folder, url, n: asyncio.run(embedded.enqueue_coroutines(folder, n, url)),
            "enqueue_bulk": lambda folder, url, n: asyncio.run(embedded.enqueue_bulk(folder, n, url)),
            "latency": lambda folder, url, n: asyncio.run(embedded.latency(folder, n, url)),
            "add_schedules": lambda folder, url, n: asyncio.run(schedules.add_schedules(folder, n, url)),
            "tick": lambda url, **p: asyncio.run(schedules.tick(store=url, **p)),
        }
    )
