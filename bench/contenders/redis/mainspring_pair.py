"""Mainspring with PostgreSQL as its store, and Redis Streams to tell workers of runs or nothing beside it."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.contenders.common import Figures, Meter, main, memory, rate
from bench.contenders.mainspring_ import DRAIN_CONCURRENCY
from bench.contenders.mainspring_kit import durability_in
from bench.contenders.postgres.drivers import Asyncpg, until_none
from bench.contenders.postgres.mainspring_ import OPEN, Counter, check_ended
from bench.contenders.redis.peer import Looks
from mainspring import Mainspring

#: How many messages all streams have had.
TOLD = """
local told = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('TYPE', key).ok == 'stream' then
    local said = redis.call('XINFO', 'STREAM', key)
    for i = 1, #said, 2 do
      told = told + (said[i] == 'entries-added' and said[i + 1] or 0)
    end
  end
end
return told
"""


async def _drain(url: str, broker: str, n: int, streams: bool, **_: Any) -> Figures:
    """Enqueue in bulk, then start a worker; the end is the commit of the last outcome."""
    look, beside = await Asyncpg.connect(url), await Looks.connect(broker)
    words: dict[str, Any] = {"broker": broker} if streams else {}
    ms = Mainspring(url, concurrency=DRAIN_CONCURRENCY, **words)
    counter = Counter(ms)
    durability = await durability_in(ms)
    if streams:
        durability += f"; {await beside.durability()}"
    meter = Meter()
    await counter.enqueue(n)
    filled = meter.wall()
    meter = Meter()
    async with ms.running():
        await counter.done.wait()
        await until_none(look, OPEN)
        seconds, cpu = meter.wall(), meter.cpu()
    await check_ended(look, n)
    told = await beside.count(TOLD)
    if streams and not told:
        raise SystemExit("no instance received a message of the broker")
    await look.close()
    await beside.close()
    await ms.close()
    return {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "fill_per_second": rate(n, filled),
        "told": told,
        "durability": durability,
        **memory(),
    }


if __name__ == "__main__":
    main({"drain": lambda **p: asyncio.run(_drain(**p))})
