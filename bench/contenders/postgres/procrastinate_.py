"""Procrastinate: psycopg, ten jobs at once, which is its best here; one job is one fetch and one finish."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.contenders.postgres.drivers import durability_by_psycopg
from bench.contenders.postgres.peer import Peer, run

CONCURRENCY = 10
BULK = 1_000


class Procrastinate(Peer):
    """Ended jobs stay in its table with their status."""

    open_rows = "SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

    async def open(self) -> None:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self._connector = PsycopgConnector(conninfo=self.url, min_size=2, max_size=10)
        self._app = App(connector=self._connector)
        await self._app.open_async()
        if not await self._look("SELECT to_regclass('procrastinate_jobs')"):
            await self._app.schema_manager.apply_schema_async()

        @self._app.task(name="nothing")  # type: ignore[untyped-decorator,unused-ignore]  # as for all peers
        async def nothing(number: int | None = None) -> None:
            self.ran.one(number)

        self._task: Any = nothing

    async def _look(self, sql: str) -> Any:
        async with self._connector.pool.connection() as connection:
            row = await (await connection.execute(sql)).fetchone()
            return next(iter(row.values())) if isinstance(row, dict) else row[0]

    async def enqueue(self, number: int | None = None) -> None:
        await (self._task.defer_async() if number is None else self._task.defer_async(number=number))

    async def enqueue_many(self, n: int) -> None:
        for start in range(0, n, BULK):
            await self._task.batch_defer_async(*({} for _ in range(min(BULK, n - start))))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        task = asyncio.create_task(
            self._app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False, listen_notify=True)
        )
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def durability(self) -> str:
        async with self._connector.pool.connection() as connection:
            return await durability_by_psycopg(connection)

    async def close(self) -> None:
        await self._app.close_async()


if __name__ == "__main__":
    run(Procrastinate, "bench.contenders.postgres.procrastinate_")
