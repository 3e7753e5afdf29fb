"""A watch that polls the server's lists of sessions and locks while a test runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from types import TracebackType
from typing import Any, Self

from mainspring.backends.postgres import PostgresStore

#: Returns per application name: connections, and the age in seconds of the oldest transaction and lock wait.
_ACTIVITY = """
SELECT a.application_name AS name, count(*) AS connections,
       coalesce(max(extract(epoch FROM clock_timestamp() - a.xact_start)), 0)::float AS oldest,
       coalesce(max(extract(epoch FROM clock_timestamp() - l.waitstart)), 0)::float AS waited
FROM pg_stat_activity a LEFT JOIN pg_locks l ON l.pid = a.pid AND NOT l.granted
WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
GROUP BY 1
"""
#: Returns locks on whole tables that block plain reads or writes.
_STRONG = """
SELECT DISTINCT l.relation::regclass::text || ' ' || l.mode FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
"""


class Watch:
    """`async with Watch(store) as watch:` records maxima over all clients of the store's database."""

    def __init__(self, store: PostgresStore, pause: float = 0.02) -> None:
        self._store = store
        self._pause = pause
        self._connection: Any = None
        self._task: asyncio.Task[None] | None = None
        self.seen = 0
        #: The most connections of each application name.
        self.connections: Counter[str] = Counter()
        #: The longest transaction and the longest wait for a lock, in seconds.
        self.oldest = self.waited = 0.0
        self.strong: set[str] = set()

    async def look(self) -> None:
        """Poll once."""
        for row in await self._connection.fetch(_ACTIVITY):
            self.connections[row["name"]] = max(self.connections[row["name"]], row["connections"])
            self.oldest, self.waited = max(self.oldest, row["oldest"]), max(self.waited, row["waited"])
        self.strong.update(row[0] for row in await self._connection.fetch(_STRONG))
        self.seen += 1

    async def _keep_looking(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._pause)

    async def __aenter__(self) -> Self:
        self._connection = await self._store._db.connect()
        self._task = asyncio.create_task(self._keep_looking())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._connection.terminate()

    def __str__(self) -> str:
        return (
            f"{self.seen} looks: oldest transaction {self.oldest * 1000:.0f} ms, "
            f"longest wait for a lock {self.waited * 1000:.0f} ms"
        )
