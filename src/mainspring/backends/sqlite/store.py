"""The SQLite store: the port's methods on one file, run on the thread that calls them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mainspring.aio.wakeup import Wakeup
from mainspring.backends.sqlite import apply, claim, due, find, keyvalue, leases, purge, renew, restore, run_logs
from mainspring.backends.sqlite.change_watch import LOOKAHEAD_POLL_SECONDS, ChangeWatch
from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.transactional import adapt_connection
from mainspring.model.change import Change, Result
from mainspring.model.events import Event
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import KeyValue
from mainspring.model.lease import Lease
from mainspring.model.retention import Purged, Retention
from mainspring.model.run_log import LogEntry
from mainspring.ports.clock import Clock
from mainspring.ports.store import (
    Agenda,
    Applied,
    Capabilities,
    Claimed,
    ClaimRequest,
    Due,
    Offer,
    Page,
    Query,
    Renewed,
)

T = TypeVar("T")


class SqliteStore:
    """A store in one file, with one connection. Any number of processes of one machine may open the file.

    `clock`: None means the system's clock. `synchronous`: SQLite's setting of that name, "FULL", "EXTRA" or "NORMAL".
    `force`: open the file even on a network file system. `shared`: open it even if other users may read or write it,
    and leave the permissions of a new file to the umask. `failpoint`: called with the names of places in the code, for
    tests. `read_only`: only queries, on a file that exists and that this user may not write.
    """

    capabilities = Capabilities(durable=True, multi_process=True)
    #: Whether other connections can write while a caller's transaction is open: no, because it locks the file.
    others_write = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock | None = None,
        *,
        synchronous: str = "FULL",
        force: bool = False,
        shared: bool = False,
        failpoint: Callable[[str], None] | None = None,
        read_only: bool = False,
    ) -> None:
        db = Database(os.fspath(path), clock, synchronous, force, failpoint, shared=shared, read_only=read_only)
        self._use(db)

    def _use(self, db: Database) -> None:
        """Set the fields of a new store object, with `db` as connection: for the constructor and `open_beside`."""
        self._db = db
        self._hints = Wakeup()
        self._watch = ChangeWatch(self._db)
        #: Function that polls for commits of other processes and sets the timer of the next poll to the given seconds
        #: or more. None while no call of `wait` is pending.
        self._poll: Callable[[float], None] | None = None

    @property
    def path(self) -> str:
        """Return the path of the file as it was given to the constructor."""
        return self._db.path

    def open_beside(self) -> SqliteStore:
        """Return a new store object on the file, not open yet.

        Its writes do not wait while another connection is writing: they fail at once.
        """
        other = SqliteStore.__new__(SqliteStore)
        other._use(self._db.second_connection())
        return other

    async def open(self) -> None:
        self._db.open()
        self._watch.has_changed()

    async def close(self) -> None:
        self._db.close()
        self._hints.notify()

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        found = due.due(self._db, agenda, limit, hold, ahead, now)
        if ahead and self._poll is not None:  # the engine is awake now: a poll here spares `wait` a wake-up
            self._poll(LOOKAHEAD_POLL_SECONDS)
        return found

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: Ms | None = None
    ) -> Applied:
        return apply.apply(self._db, changes, claim_request, now)

    def join(self, connection: Any, changes: Sequence[Change], *, blocking: bool) -> list[Result]:
        """Insert new runs in the transaction of the caller's `sqlite3.Connection`; return a result for each change.

        Raises: `InvalidInput` unless the connection is open on this store's file. `blocking` makes no difference: the
        call never needs to be awaited. Thread: the caller's.
        """
        return apply.apply(adapt_connection(self._db, connection), changes, None, None).results

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[RunId] = (), now: Ms | None = None) -> Claimed:
        return claim.claim(self._db, offer, limit, ids, now)

    async def renew(
        self, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, *, now: Ms | None = None
    ) -> Renewed:
        return renew.renew(self._db, owner, leases, ttl, now)

    async def progress(self, run_id: RunId, epoch: int, text: str) -> bool:
        return renew.progress(self._db, run_id, epoch, text)

    async def find(self, query: Query[T]) -> list[T]:
        return find.find(self._db, query)

    async def tail(self, after: int, limit: int) -> list[Event]:
        return find.tail(self._db, after, limit)

    async def lease(
        self,
        name: str,
        owner: str,
        ttl: Ms,
        *,
        epoch: int | None = None,
        data: str | None = None,
        now: Ms | None = None,
    ) -> Lease | None:
        return leases.lease(self._db, name, owner, ttl, epoch, data, now)

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        return leases.release(self._db, name, owner, epoch)

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        return purge.purge(self._db, policy, limit, now)

    async def append_log(self, entries: Sequence[LogEntry], limit: int) -> None:
        run_logs.append_log(self._db, entries, limit)

    async def put(self, items: Sequence[KeyValue], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        return keyvalue.put(self._db, items, replace, now)

    async def remove(self, kind: str, ids: Sequence[str]) -> int:
        return keyvalue.remove(self._db, kind, ids)

    async def restore(self, page: Page) -> bool:
        return restore.restore(self._db, page)

    async def wait(self, timeout: float) -> bool:
        """Return True once another connection has committed or the store is closed, else False after `timeout` seconds.

        SQLite notifies no other process, so a timer polls the file meanwhile.
        """
        if self._watch.has_changed():
            return True
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def poll(least: float = 0.0) -> None:
            """End the call of `wait` if another connection has committed, else poll again in `least` seconds or later.

            Called by a timer, and by `due` while the engine plans ahead.
            """
            nonlocal timer
            if timer is not None:
                timer.cancel()
            if self._watch.has_changed():
                self._hints.notify()
            else:
                timer = loop.call_later(max(least, self._watch.interval()), poll)

        timer = loop.call_later(self._watch.interval(), poll)
        self._poll = poll
        try:
            return await self._hints.wait(timeout)
        finally:
            self._poll = None
            timer.cancel()
