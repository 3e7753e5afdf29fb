"""The SQLite store: the port's verbs on one file, run on the thread that calls them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mainspring.model.change import Change, Result
from mainspring.model.events import Event
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.model.kept import Kept
from mainspring.ports.clock import Clock
from mainspring.ports.store import (
    Agenda,
    Applied,
    Capabilities,
    Claimed,
    Due,
    Lease,
    Offer,
    Page,
    Purged,
    Query,
    Renewed,
    Retention,
    Wish,
)
from mainspring.stores.hints import Hints
from mainspring.stores.sqlite import apply, claim, due, find, kept, leases, purge, restore
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.joining import guest
from mainspring.stores.sqlite.watch import ALONG, Watch

T = TypeVar("T")


class SqliteStore:
    """One file, one connection; any number of processes on one machine may open the same file."""

    capabilities = Capabilities(durable=True, multi_process=True)
    #: Nobody else can write to the file while a transaction is open.
    others_write = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock | None = None,
        *,
        synchronous: str = "FULL",
        force: bool = False,
        failpoint: Callable[[str], None] | None = None,
    ) -> None:
        self._use(Database(os.fspath(path), clock, synchronous, force, failpoint))

    def _use(self, db: Database) -> None:
        self._db = db
        self._hints = Hints()
        self._watch = Watch(self._db)
        #: Looks for what other processes wrote, while somebody waits for it; and again after so many seconds or later.
        self._look: Callable[[float], None] | None = None

    @property
    def path(self) -> str:
        """The file, as it was given."""
        return self._db.path

    def beside(self) -> SqliteStore:
        """Another connection to the file, which does not wait for who is writing."""
        other = SqliteStore.__new__(SqliteStore)
        other._use(self._db.beside())
        return other

    async def open(self) -> None:
        self._db.open()
        self._watch.changed()

    async def close(self) -> None:
        self._db.close()
        self._hints.notify()

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        found = due.due(self._db, agenda, limit, hold, ahead, now)
        if ahead and self._look is not None:  # it is busy, and awake: that spares whoever waits a turn of its own
            self._look(ALONG)
        return found

    async def apply(self, changes: Sequence[Change], *, wish: Wish | None = None, now: Ms | None = None) -> Applied:
        return apply.apply(self._db, changes, wish, now)

    def join(self, connection: Any, changes: Sequence[Change], *, blocking: bool) -> list[Result]:
        """Births in the caller's own transaction, on its `sqlite3.Connection` to the same file."""
        return apply.apply(guest(self._db, connection), changes, None, None).results

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[RunId] = (), now: Ms | None = None) -> Claimed:
        return claim.claim(self._db, offer, limit, ids, now)

    async def renew(
        self, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, *, now: Ms | None = None
    ) -> Renewed:
        return claim.renew(self._db, owner, leases, ttl, now)

    async def progress(self, run_id: RunId, epoch: int, text: str) -> bool:
        return claim.progress(self._db, run_id, epoch, text)

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

    async def keep(self, items: Sequence[Kept], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        return kept.keep(self._db, items, replace, now)

    async def forget(self, kind: str, ids: Sequence[str]) -> int:
        return kept.forget(self._db, kind, ids)

    async def restore(self, page: Page) -> bool:
        return restore.restore(self._db, page)

    async def wait(self, timeout: float) -> bool:
        if self._watch.changed():
            return True
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def look(least: float = 0.0) -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
            if self._watch.changed():
                self._hints.notify()
            else:
                timer = loop.call_later(max(least, self._watch.interval()), look)

        timer = loop.call_later(self._watch.interval(), look)
        self._look = look
        try:
            return await self._hints.wait(timeout)
        finally:
            self._look = None
            timer.cancel()
