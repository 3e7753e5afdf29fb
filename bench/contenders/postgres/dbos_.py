"""DBOS: a queue of asynchronous workflows, looked at every 10 ms (its default is a second)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dbos import DBOS, DBOSClient
from sqlalchemy import text

from bench.contenders.common import SETTINGS, committed
from bench.contenders.postgres.peer import Peer, run

POLL = 0.01
QUEUE = "bench"
_peer: DbosPeer


@DBOS.workflow(name="nothing")  # type: ignore[untyped-decorator,unused-ignore]  # as for all peers
async def nothing(number: int | None = None) -> None:
    _peer.ran.one(number)


class DbosPeer(Peer):
    """A launched DBOS works at once, so a client enqueues before that."""

    open_rows = "SELECT 1 FROM dbos.workflow_status WHERE status IN ('PENDING', 'ENQUEUED')"

    async def open(self) -> None:
        global _peer
        _peer = self
        self._address = self.url.replace("postgresql://", "postgresql+psycopg://", 1)
        await asyncio.to_thread(self._prepare)
        self._client: Any = await asyncio.to_thread(DBOSClient, system_database_url=self._address)

    def _prepare(self) -> None:
        """Make the tables and the queue."""
        self._launch()
        self._version = DBOS.application_version
        DBOS.register_queue(QUEUE, polling_interval_sec=POLL)
        DBOS.destroy(destroy_registry=False)

    def _launch(self) -> None:
        DBOS(
            config={"name": "bench", "system_database_url": self._address, "log_level": "ERROR", "executor_id": "bench"}
        )
        DBOS.launch()

    async def enqueue(self, number: int | None = None) -> None:
        options = {"queue_name": QUEUE, "workflow_name": "nothing", "app_version": self._version}
        await self._client.enqueue_async(options, *(() if number is None else (number,)))

    async def enqueue_many(self, n: int) -> None:
        """It has no bulk call: a few side by side."""
        for start in range(0, n, 8):
            await asyncio.gather(*(self.enqueue() for _ in range(min(8, n - start))))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        await asyncio.to_thread(self._launch)
        yield

    async def durability(self) -> str:
        def ask() -> Any:
            with self._client._sys_db.engine.connect() as connection:
                return connection.execute(text(SETTINGS)).fetchone()

        return committed(*await asyncio.to_thread(ask))


def _run(work: Any) -> Any:
    """Its threads may outlive the loop; what is measured is over then."""
    return asyncio.run(work)


if __name__ == "__main__":
    run(DbosPeer, "bench.contenders.postgres.dbos_", runner=_run)
    os._exit(0)
