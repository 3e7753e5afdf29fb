"""Advisory locks: the server's own, each on a direct connection that is held for as long as the lock.

The lock is the connection's: it ends when the server sees that the connection is gone, and not at a given time. A row
of the lease table numbers the holders; it guards nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any

from mainspring.model.errors import InvalidInput, StoreError
from mainspring.model.instant import Ms
from mainspring.ports.lock import Holder
from mainspring.stores.postgres.database import Broken, Database, Met
from mainspring.stores.postgres.errors import DRIVER, translate
from mainspring.stores.postgres.leases import LEASE_COLUMNS
from mainspring.stores.postgres.rows import NOW, plain_text

_KEY = "hashtextextended($1, 0)"
_TRY = f"SELECT pg_try_advisory_lock({_KEY})"
_LOOK = f"SELECT pg_try_advisory_xact_lock({_KEY})"
_UNLOCK = f"SELECT pg_advisory_unlock({_KEY})"
#: now, name, owner, ttl, data
_NUMBER = f"""
INSERT INTO §lease AS l ({LEASE_COLUMNS})
SELECT $2, $3, 1, t.now + $4::bigint, t.now, $5::text, true FROM (SELECT {NOW} AS now) t
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, epoch = l.epoch + 1, expires_at = excluded.expires_at,
    renewed_at = excluded.renewed_at, data = excluded.data, live = true
RETURNING epoch
"""  # noqa: S608 - column names, no input
_LET_GO = "UPDATE §lease SET live = false WHERE name = $1 AND owner = $2 AND epoch = $3 AND live RETURNING name"
_HOLDER = "SELECT owner, epoch, live, data FROM §lease WHERE name = $1"


class AdvisoryLocks:
    """For one acquisition: it keeps the connection."""

    def __init__(self, db: Database) -> None:
        settings = db.settings
        if settings.pooler and settings.listen == "no":
            raise InvalidInput(
                "kind",
                "an advisory lock needs a direct connection, and this one goes through a pooler",
                'Add listen=<address of the server itself> to the URL, or use kind="lease"',
            )
        self._db = db
        self._direct = None if settings.listen in ("yes", "no") else settings.listen
        self._connection: Any = None

    async def take(self, name: str, owner: str, ttl: Ms, data: str | None = None) -> int | None:
        """Look through the pool whether it is free, take it on a connection of its own, then count."""
        await self._drop()
        if not await self._looks_free(name):
            return None
        try:
            self._connection = await self._db.connect(self._direct)
            if not await self._connection.fetchval(_TRY, self._key(name), timeout=ttl / 1000):
                await self._drop()
                return None
        except DRIVER as error:
            await self._drop()
            raise translate(error, self._db.settings.where) from error
        except BaseException:  # whoever asked is gone: the lock must not stay with a connection that nobody knows
            await self._drop()
            raise
        try:
            async with self._db.single("lease") as session:
                row = await session.row(_NUMBER, self._db.now(None), _row(name), owner, ttl, plain_text(data))
        except (Broken, Met) as error:
            await self._drop()
            raise error.why from error
        except BaseException:
            await self._drop()
            raise
        assert row is not None
        return int(row[0])

    async def _looks_free(self, name: str) -> bool:
        """Those who wait should not open a connection each time they look."""
        try:
            async with self._db.single("lease") as session:
                return bool(await session.value(_LOOK, self._key(name)))
        except (Broken, Met) as error:
            raise error.why from error

    async def renew(self, name: str, owner: str, token: int, ttl: Ms, data: str | None = None) -> bool:
        """The lock lives as long as its connection: see whether that does."""
        if self._connection is None or self._connection.is_closed():
            return False
        try:
            await self._connection.fetchval("SELECT 1", timeout=ttl / 1000)
        except DRIVER:
            await self._drop()
            return False
        return True

    async def release(self, name: str, owner: str, token: int) -> bool:
        """Unlock, and give the connection back to the server."""
        held = False
        if self._connection is not None and not self._connection.is_closed():
            with contextlib.suppress(*DRIVER):
                held = bool(await self._connection.fetchval(_UNLOCK, self._key(name), timeout=5))
        await self._drop()
        with contextlib.suppress(StoreError, Broken, Met):
            async with self._db.single("lease") as session:
                await session.row(_LET_GO, _row(name), owner, token)
        return held

    async def holder(self, name: str) -> Holder | None:
        """As the row says: who took it last, and whether it said that it let go."""
        try:
            async with self._db.single("lease") as session:
                row = await session.row(_HOLDER, _row(name))
        except (Broken, Met) as error:
            raise error.why from error
        return None if row is None else Holder(*row)

    def _key(self, name: str) -> str:
        return f"{self._db.settings.schema}:{name}"

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _row(name: str) -> str | None:
    """Another row than a lease of that name has: the two kinds know nothing of each other."""
    return plain_text(f"advisory:{name}")
