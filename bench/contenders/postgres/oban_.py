"""Oban for Python: a queue of 100, uvloop as its own command uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from oban import Oban, worker
from oban.schema import install

from bench.contenders.postgres.drivers import durability_by_psycopg
from bench.contenders.postgres.peer import Peer, run

CONCURRENCY = 100
BULK = 1_000
_peer: ObanPeer


@worker(queue="default")  # type: ignore[untyped-decorator,unused-ignore]  # as for all peers
class Nothing:
    """The work."""

    async def process(self, job: Any) -> None:
        _peer.ran.one(job.args.get("number"))


class ObanPeer(Peer):
    """Ended jobs stay in its table with their state."""

    open_rows = (
        "SELECT 1 FROM oban_jobs WHERE state IN ('available', 'executing', 'retryable', 'scheduled', 'suspended')"
    )

    async def open(self) -> None:
        global _peer
        _peer = self
        self._pool = await Oban.create_pool(self.url, min_size=2, max_size=10)
        async with self._pool.connection() as connection:
            row = await (await connection.execute("SELECT to_regclass('oban_jobs') IS NULL")).fetchone()
        if row[0]:
            await install(self._pool)
        self._client = await Oban(pool=self._pool, name="client").start()

    async def enqueue(self, number: int | None = None) -> None:
        await self._client.enqueue(Nothing.new({} if number is None else {"number": number}))  # type: ignore[attr-defined,unused-ignore]  # the decorator's

    async def enqueue_many(self, n: int) -> None:
        for start in range(0, n, BULK):
            await self._client.enqueue_many([Nothing.new({}) for _ in range(min(BULK, n - start))])  # type: ignore[attr-defined,unused-ignore]  # as above

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        oban = await Oban(pool=self._pool, name="Oban", queues={"default": CONCURRENCY}).start()
        try:
            yield
        finally:
            await oban.stop()

    async def durability(self) -> str:
        async with self._pool.connection() as connection:
            return await durability_by_psycopg(connection)

    async def close(self) -> None:
        await self._client.stop()
        await self._pool.close()


if __name__ == "__main__":
    run(ObanPeer, "bench.contenders.postgres.oban_", runner=uvloop.run)
