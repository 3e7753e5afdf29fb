"""pgqueuer: asyncpg, uvloop as its own command uses it, a batch of its claims and completions at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from bench.contenders.postgres.drivers import Asyncpg, durability_by_asyncpg
from bench.contenders.postgres.peer import Peer, run

#: Its default is 10.
BATCH = int(os.environ.get("PGQUEUER_BATCH", "100"))
#: Jobs to one call of its bulk insert.
BULK = 1_000


class Pgqueuer(Peer):
    """Its worker and its inserts have a connection each."""

    looks = Asyncpg
    open_rows = "SELECT 1 FROM pgqueuer"

    async def open(self) -> None:
        self._inserts = await asyncpg.connect(self.url)
        self._works = await asyncpg.connect(self.url)
        self._queries = Queries(AsyncpgDriver(self._inserts))
        if await self._inserts.fetchval("SELECT to_regclass('pgqueuer') IS NULL"):
            await self._queries.install()
        self._app = PgQueuer(AsyncpgDriver(self._works))

        @self._app.entrypoint("nothing")  # type: ignore[untyped-decorator,unused-ignore]  # not installed where types are checked
        async def nothing(job: Any) -> None:
            self.ran.one(None if job.payload is None else int(job.payload))

    async def enqueue(self, number: int | None = None) -> None:
        await self._queries.enqueue("nothing", None if number is None else str(number).encode())

    async def enqueue_many(self, n: int) -> None:
        for start in range(0, n, BULK):
            count = min(BULK, n - start)
            await self._queries.enqueue(["nothing"] * count, [None] * count, [0] * count)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._app.run(batch_size=BATCH))
        try:
            yield
        finally:
            self._app.shutdown.set()
            await task

    async def durability(self) -> str:
        return await durability_by_asyncpg(self._works)

    async def close(self) -> None:
        await self._inserts.close()
        await self._works.close()


if __name__ == "__main__":
    run(Pgqueuer, "bench.contenders.postgres.pgqueuer_", runner=uvloop.run)
