"""SAQ on Redis: 100 jobs at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from saq import Queue, Worker

from bench.contenders.redis.peer import RedisPeer, run, stopped

CONCURRENCY = 100


class Saq(RedisPeer):
    """It has no bulk call; a few side by side.."""

    open_rows = "return redis.call('ZCARD', 'saq:default:incomplete')"

    async def open(self) -> None:
        logging.getLogger("saq").setLevel(logging.ERROR)
        self._queue: Any = Queue.from_url(self.url)
        await self._queue.connect()

    async def enqueue(self, number: int | None = None) -> None:
        words = {} if number is None else {"number": number}
        await self._queue.enqueue("nothing", timeout=0, **words)

    async def enqueue_many(self, n: int) -> None:
        for start in range(0, n, 20):
            await asyncio.gather(*(self.enqueue() for _ in range(min(20, n - start))))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async def nothing(_context: Any, *, number: int | None = None) -> None:
            self.ran.one(number)

        worker: Any = Worker(self._queue, [("nothing", nothing)], concurrency=CONCURRENCY)
        worker.SIGNALS = []
        task = asyncio.create_task(worker.start())
        try:
            yield
        finally:
            await worker.stop()
            await stopped(task)

    async def close(self) -> None:
        await self._queue.disconnect()


if __name__ == "__main__":
    run(Saq, "bench.contenders.redis.saq_", runner=uvloop.run)
