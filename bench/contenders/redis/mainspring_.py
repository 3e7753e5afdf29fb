"""Mainspring on Redis or Valkey, through its public door; defaults unless a scenario says otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.contenders import mainspring_ as embedded
from bench.contenders.common import Figures, Meter, main, memory, rate
from bench.contenders.mainspring_ import DRAIN_CONCURRENCY, events_kept
from bench.contenders.mainspring_kit import durability_in
from bench.contenders.postgres.mainspring_ import Counter
from mainspring import Mainspring

PAUSE = 0.002


async def _drain(url: str, n: int, **_: Any) -> Figures:
    """Enqueue in bulk, then start a worker; the end is the server's answer to the last outcome."""
    look = Mainspring(url)
    ms = Mainspring(url, concurrency=DRAIN_CONCURRENCY)
    counter = Counter(ms)
    durability = await durability_in(ms)
    meter = Meter()
    await counter.enqueue(n)
    filled = meter.wall()
    meter = Meter()
    async with ms.running():
        await counter.done.wait()
        await _all_ended(look)
        seconds, cpu = meter.wall(), meter.cpu()
    events = await events_kept(look)
    whole = await _succeeded(look)
    await look.close()
    await ms.close()
    if whole != n or events < 3 * n:
        raise SystemExit(f"of {n} runs {whole} succeeded at the first attempt, with {events} events")
    return {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "fill_per_second": rate(n, filled),
        "events": events,
        "durability": durability,
        "concurrency": DRAIN_CONCURRENCY,
        **memory(),
    }


async def _all_ended(look: Mainspring) -> None:
    """Every handler has returned; wait until the server says so too, on a connection of our own."""
    async with asyncio.timeout(60):
        for state in ("running", "waiting", "retrying"):
            while await look.find_by_status(state, limit=1):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(PAUSE)


async def _succeeded(look: Mainspring) -> int:
    """How many succeeded at the first attempt."""
    seen, after = 0, None
    while page := await look.runs(state="succeeded", limit=1_000, after=after):
        seen, after = seen + sum(run.attempt == 1 for run in page), page[-1].id
    return seen


if __name__ == "__main__":
    main(
        {
            "drain": lambda **p: asyncio.run(_drain(**p)),
            "enqueue_one": lambda folder, url, n: asyncio.run(embedded.enqueue_one(folder, n, url)),
            "enqueue_coroutines": lambda folder, url, n: asyncio.run(embedded.enqueue_coroutines(folder, n, url)),
            "enqueue_bulk": lambda folder, url, n: asyncio.run(embedded.enqueue_bulk(folder, n, url)),
            "latency": lambda folder, url, n: asyncio.run(embedded.latency(folder, n, url)),
        }
    )
