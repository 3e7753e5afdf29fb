"""arq: 100 jobs at once, looked for every 10 ms (its default is half a second), no results kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.contenders.redis.peer import RedisPeer, run

CONCURRENCY = 100
POLL = 0.01


class Arq(RedisPeer):
    """It has no bulk call; a few side by side."""

    open_rows = "return redis.call('ZCARD', 'arq:queue')"

    async def open(self) -> None:
        logging.getLogger("arq").setLevel(logging.ERROR)
        self._settings = RedisSettings.from_dsn(self.url)
        self._pool: Any = await create_pool(self._settings)

    async def enqueue(self, number: int | None = None) -> None:
        await (self._pool.enqueue_job("nothing") if number is None else self._pool.enqueue_job("nothing", number))

    async def enqueue_many(self, n: int) -> None:
        for start in range(0, n, 20):
            await asyncio.gather(*(self.enqueue() for _ in range(min(20, n - start))))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async def nothing(_context: Any, number: int | None = None) -> None:
            self.ran.one(number)

        worker: Any = Worker(
            [func(nothing, name="nothing", keep_result=0)],
            redis_settings=self._settings,
            max_jobs=CONCURRENCY,
            poll_delay=POLL,
            handle_signals=False,
        )
        task = asyncio.create_task(worker.async_run())
        try:
            yield
        finally:
            await worker.close()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        await self._pool.aclose()


if __name__ == "__main__":
    run(Arq, "bench.contenders.redis.arq_", runner=uvloop.run)
