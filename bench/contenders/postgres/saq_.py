"""SAQ on PostgreSQL: psycopg, 100 jobs at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue, Worker

from bench.contenders.postgres.drivers import durability_by_psycopg
from bench.contenders.postgres.peer import Peer, run

CONCURRENCY = 100


class Saq(Peer):
    """It has no bulk call; enqueueing takes a connection each, so a few of them go side by side."""

    open_rows = "SELECT 1 FROM saq_jobs WHERE status IN ('new', 'queued', 'active', 'aborting')"

    async def open(self) -> None:
        logging.getLogger("saq").setLevel(logging.ERROR)
        self._queue: Any = Queue.from_url(self.url)
        await self._queue.connect()

    async def enqueue(self, number: int | None = None) -> None:
        await (self._queue.enqueue("nothing") if number is None else self._queue.enqueue("nothing", number=number))

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
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def durability(self) -> str:
        async with self._queue.pool.connection() as connection:
            return await durability_by_psycopg(connection)

    async def close(self) -> None:
        await self._queue.disconnect()


if __name__ == "__main__":
    run(Saq, "bench.contenders.postgres.saq_")
