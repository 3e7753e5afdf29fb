"""Chancy: its asyncio executor, eager polling (without it a queue gives `concurrency` jobs in five seconds)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy, Queue, Worker
from chancy.job import job

from bench.contenders.postgres.drivers import durability_by_psycopg
from bench.contenders.postgres.peer import Peer, run

CONCURRENCY = 100
_peer: ChancyPeer


@job(queue="default")  # type: ignore[untyped-decorator,unused-ignore]  # as for all peers
async def nothing(*, number: int | None = None) -> None:
    """Found by its import path, so it cannot be a closure."""
    _peer.ran.one(number)


class ChancyPeer(Peer):
    """Outcomes are flushed once a second."""

    open_rows = "SELECT 1 FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed')"

    async def open(self) -> None:
        global _peer
        _peer = self
        self._app = Chancy(self.url, log=logging.getLogger("quiet"))
        await self._app.__aenter__()
        await self._app.migrate()
        await self._app.declare(
            Queue("default", concurrency=CONCURRENCY, executor=Chancy.Executor.Async, eager_polling=True), upsert=True
        )

    def _job(self, number: int | None = None) -> Any:
        return nothing.job if number is None else nothing.job.with_kwargs(number=number)

    async def enqueue(self, number: int | None = None) -> None:
        await self._app.push(self._job(number))

    async def enqueue_many(self, n: int) -> None:
        async for _ in self._app.push_many([self._job()] * n):
            pass

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with Worker(self._app, register_signal_handlers=False):
            yield

    async def durability(self) -> str:
        async with self._app.pool.connection() as connection:
            return await durability_by_psycopg(connection)

    async def close(self) -> None:
        await self._app.__aexit__(None, None, None)


if __name__ == "__main__":
    import sys

    # jobs name this module, which must be this one
    sys.modules["bench.contenders.postgres.chancy_"] = sys.modules["__main__"]
    nothing.job = nothing.job.__class__(**{**vars(nothing.job), "func": "bench.contenders.postgres.chancy_.nothing"})
    run(ChancyPeer, "bench.contenders.postgres.chancy_")
