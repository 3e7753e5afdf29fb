"""Advisory locks of the server, each on a direct connection of its own.

A lock belongs to its connection: it ends when the server finds the connection gone, not at a given time. A row of the
lease table counts the terms of a lock (its acquisitions) and names its holder. The row is for information only: it
protects nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any

from mainspring.backends.postgres.database import Database
from mainspring.backends.postgres.errors import DRIVER_ERRORS, translate
from mainspring.backends.postgres.leases import LEASE_COLUMNS
from mainspring.backends.postgres.rows import NOW_SQL, storable_text
from mainspring.backends.remote.failures import ConnectionLost, WriteConflict
from mainspring.model.errors import InvalidInput, StoreError
from mainspring.model.instant import Ms
from mainspring.ports.lock import LockHolder

_KEY = "hashtextextended($1, 0)"
#: Parameter: key. Takes the lock for the session if it is free; returns whether it was.
_TRY_LOCK = f"SELECT pg_try_advisory_lock({_KEY})"
#: Parameter: key. Takes the lock until the transaction ends if it is free; returns whether it was.
_TRY_BRIEFLY = f"SELECT pg_try_advisory_xact_lock({_KEY})"
_UNLOCK = f"SELECT pg_advisory_unlock({_KEY})"
#: Parameters: now, name, owner, ttl, data. Begins a term in the lock's row of the lease table; returns its number.
_COUNT_TERM = f"""
INSERT INTO §lease AS l ({LEASE_COLUMNS})
SELECT $2, $3, 1, t.now + $4::bigint, t.now, $5::text, true FROM (SELECT {NOW_SQL} AS now) t
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, epoch = l.epoch + 1, expires_at = excluded.expires_at,
    renewed_at = excluded.renewed_at, data = excluded.data, live = true
RETURNING epoch
"""  # noqa: S608 - column names, no input
_END_TERM = "UPDATE §lease SET live = false WHERE name = $1 AND owner = $2 AND epoch = $3 AND live RETURNING name"
_HOLDER = "SELECT owner, epoch, live, data FROM §lease WHERE name = $1"


class AdvisoryLocks:
    """Acquires an advisory lock of the server and keeps the connection that holds it. One object holds at most one."""

    def __init__(self, db: Database) -> None:
        """Remember the database and the address for direct connections; nothing is opened.

        Raises: `InvalidInput` if the URL names a pooler and its option `listen` is 'no' or missing, because a lock
        needs a direct connection.
        """
        settings = db.settings
        if settings.pooler and settings.listen == "no":
            raise InvalidInput(
                "kind",
                "an advisory lock needs a direct connection, and this one goes through a pooler",
                'Add listen=<address of the server itself> to the URL, or use kind="lease"',
            )
        self._db = db
        #: The server's address, as host:port, for the connection that holds the lock; None: the address in the URL.
        self._direct = None if settings.listen in ("yes", "no") else settings.listen
        self._connection: Any = None

    async def acquire(self, name: str, owner: str, ttl: Ms, data: str | None = None) -> int | None:
        """Take the lock if it is free; return the number of the new term, or None if another session holds the lock.

        A lock that this object holds is released first. The lock is tried briefly on a pooled connection, then taken on
        a connection of its own. `ttl`, in milliseconds, only limits the wait for the server's answer on that
        connection: the lock does not end after it. `owner` and `data` are written to the lock's row, for `find_holder`.
        Raises: `StoreError`.
        """
        await self._cut_connection()
        if not await self._looks_free(name):
            return None
        try:
            self._connection = await self._db.connect(self._direct)
            if not await self._connection.fetchval(_TRY_LOCK, self._key(name), timeout=ttl / 1000):
                await self._cut_connection()
                return None
        except DRIVER_ERRORS as error:
            await self._cut_connection()
            raise translate(error, self._db.settings.where) from error
        except BaseException:  # also a cancellation: the connection that may hold the lock must not stay open
            await self._cut_connection()
            raise
        try:
            async with self._db.single_statement("lease") as session:
                row = await session.row(_COUNT_TERM, self._db.now(None), _row(name), owner, ttl, storable_text(data))
        except (ConnectionLost, WriteConflict) as error:
            await self._cut_connection()
            raise error.store_error from error
        except BaseException:
            await self._cut_connection()
            raise
        assert row is not None
        return int(row[0])

    async def _looks_free(self, name: str) -> bool:
        """Return True if the lock is free: try to take it on a pooled connection, for one statement only.

        Why: a caller that polls a lock held by another session then opens no connection of its own. Raises:
        `StoreError`.
        """
        try:
            async with self._db.single_statement("lease") as session:
                return bool(await session.value(_TRY_BRIEFLY, self._key(name)))
        except (ConnectionLost, WriteConflict) as error:
            raise error.store_error from error

    async def renew(self, name: str, owner: str, token: int, ttl: Ms, data: str | None = None) -> bool:
        """Return True if the lock's connection is alive, so that the lock is held; if not, cut it and return False.

        `ttl` limits the wait for the server's answer, in milliseconds. `name`, `owner`, `token` and `data` are not
        used: nothing is written, so `find_holder` still returns the data of `acquire`.
        """
        if self._connection is None or self._connection.is_closed():
            return False
        try:
            await self._connection.fetchval("SELECT 1", timeout=ttl / 1000)
        except DRIVER_ERRORS:
            await self._cut_connection()
            return False
        return True

    async def release(self, name: str, owner: str, token: int) -> bool:
        """Release the lock and cut its connection; return True if the server confirms that this object held the lock.

        `token`: the number of the term, which `acquire` returned. The end of the term is written to the lock's row. A
        failure to write it is ignored. Return False if this object did not hold the lock, or if its connection broke.
        """
        held = False
        if self._connection is not None and not self._connection.is_closed():
            with contextlib.suppress(*DRIVER_ERRORS):
                held = bool(await self._connection.fetchval(_UNLOCK, self._key(name), timeout=5))
        await self._cut_connection()
        with contextlib.suppress(StoreError, ConnectionLost, WriteConflict):
            async with self._db.single_statement("lease") as session:
                await session.row(_END_TERM, _row(name), owner, token)
        return held

    async def find_holder(self, name: str) -> LockHolder | None:
        """Return the present or last holder of the lock; None if the lock was never held. Raises: `StoreError`.

        The holder is read from the lock's row. Its `live` is False after a release, but stays True if the holder lost
        the lock with its connection.
        """
        try:
            async with self._db.single_statement("lease") as session:
                row = await session.row(_HOLDER, _row(name))
        except (ConnectionLost, WriteConflict) as error:
            raise error.store_error from error
        return None if row is None else LockHolder(*row)

    def _key(self, name: str) -> str:
        """Return the text whose hash is the key of the advisory lock: locks of two schemas are distinct."""
        return f"{self._db.settings.schema}:{name}"

    async def _cut_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _row(name: str) -> str | None:
    """Return the lock's name in the lease table. A lock of kind "lease" with an equal name has another row there."""
    return storable_text(f"advisory:{name}")
