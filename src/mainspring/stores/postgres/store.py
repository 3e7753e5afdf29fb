"""The PostgreSQL store: the port's verbs on one schema of one database, shared by any number of instances."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from mainspring.model.change import Change, Result
from mainspring.model.errors import InvalidInput, StoreError, StoreUnavailable
from mainspring.model.events import Event
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.model.kept import Kept
from mainspring.model.run import CLAIMABLE
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
from mainspring.stores.postgres import apply, claim, due, find, guests, kept, leases, purge, restore
from mainspring.stores.postgres.advisory import AdvisoryLocks
from mainspring.stores.postgres.database import Broken, Database, Met
from mainspring.stores.postgres.errors import unknown
from mainspring.stores.postgres.joining import Home, births
from mainspring.stores.postgres.joining_sql import HOME
from mainspring.stores.postgres.notices import Notices, channel_of
from mainspring.stores.postgres.settings import PostgresSettings, read_url
from mainspring.stores.postgres.tail import Follower

T = TypeVar("T")
#: So often a verb that met another writer is tried again.
_TRIES = 5
#: So long a write whose answer is lost is sent again, in seconds; then its caller hears that nobody knows.
_RESEND_SECONDS = 8.0
_RESEND_PAUSE = 0.1


class PostgresStore:
    """A small pool of connections; the server's clock decides."""

    capabilities = Capabilities(durable=True, multi_process=True, notifies=True, own_clock=True, remote=True)
    others_write = True

    def __init__(
        self, url: str | PostgresSettings, clock: Clock | None = None, *, failpoint: Callable[[str], None] | None = None
    ) -> None:
        self.settings = read_url(url) if isinstance(url, str) else url
        self._db = Database(self.settings, clock, failpoint)
        self._notices = Notices(self._db)
        self._home: Home | None = None

    def advisory(self) -> AdvisoryLocks:
        """The server's own locks, for one acquisition: `ms.lock(name, kind="advisory")`."""
        return AdvisoryLocks(self._db)

    async def open(self) -> None:
        await self._db.open()
        try:
            async with self._db.reading() as session:
                identity = await session.value(HOME)
        except BaseException:  # what did not open is closed by nobody
            await self._db.close()
            raise
        self._home = Home(identity, self.settings.schema, channel_of(self.settings), self.settings.where)

    async def close(self) -> None:
        await self._notices.close()
        await self._db.close()

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        return await _patiently(lambda: due.due(self._db, agenda, limit, hold, ahead, now))

    async def apply(self, changes: Sequence[Change], *, wish: Wish | None = None, now: Ms | None = None) -> Applied:
        applied = await self._apply(changes, wish, now)
        if any(map(_interesting, changes)):
            self._notices.tell()
        return applied

    async def _apply(self, changes: Sequence[Change], wish: Wish | None, now: Ms | None) -> Applied:
        """Once sent, a batch whose answer is lost is sent again under the same ids: what holds answers `repeated`."""
        met = 0
        sent: Broken | None = None
        loop = asyncio.get_running_loop()
        deadline = 0.0
        while True:
            try:
                return await apply.apply(self._db, changes, wish, now, again=sent is not None)
            except Met as error:
                met += 1
                if met >= _TRIES:
                    raise error.why from error
            except Broken as error:
                deadline = deadline or loop.time() + _RESEND_SECONDS
                sent = error
            except StoreUnavailable:
                if sent is None:
                    raise
            if sent is not None:
                if loop.time() > deadline:
                    raise unknown(sent.why, self.settings.where) from sent
                await asyncio.sleep(_RESEND_PAUSE)

    def join(
        self, connection: Any, changes: Sequence[Change], *, blocking: bool
    ) -> list[Result] | Awaitable[list[Result]]:
        """Births in the caller's own transaction; on the caller's thread, the pool takes no part in it."""
        home = self._home
        if home is None:
            raise StoreError(f"{self.settings.where} is not open. Call open() first")
        one = guests.guest(connection)
        if one.waits and blocking:
            raise InvalidInput(
                "connection", "its driver is async", "Write: await task.enqueue(…, connection=connection)"
            )
        steps = births(changes, home, self._db.now(None))
        return (guests.run_async if one.waits else guests.run)(steps, one, home, self._db.place)

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[RunId] = (), now: Ms | None = None) -> Claimed:
        return await _patiently(lambda: claim.claim(self._db, offer, limit, ids, now))

    async def renew(
        self, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, *, now: Ms | None = None
    ) -> Renewed:
        return await _patiently(lambda: claim.renew(self._db, owner, leases, ttl, now))

    async def progress(self, run_id: RunId, epoch: int, text: str) -> bool:
        return await _patiently(lambda: claim.progress(self._db, run_id, epoch, text))

    async def find(self, query: Query[T]) -> list[T]:
        return await _patiently(lambda: find.find(self._db, query))

    async def tail(self, after: int, limit: int) -> list[Event]:
        return await _patiently(lambda: find.tail(self._db, after, limit))

    def follow(self, place: int | str = 0) -> Follower:
        """A place in the log that misses nothing while others write."""
        return Follower(self._db, place)

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
        return await _patiently(lambda: leases.lease(self._db, name, owner, ttl, epoch, data, now))

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        return await _patiently(lambda: leases.release(self._db, name, owner, epoch))

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        return await _patiently(lambda: purge.purge(self._db, policy, limit, now))

    async def keep(self, items: Sequence[Kept], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        return await _patiently(lambda: kept.keep(self._db, items, replace, now))

    async def forget(self, kind: str, ids: Sequence[str]) -> int:
        return await _patiently(lambda: kept.forget(self._db, kind, ids))

    async def restore(self, page: Page) -> bool:
        return await _patiently(lambda: restore.restore(self._db, page))

    async def wait(self, timeout: float) -> bool:
        return await self._notices.wait(timeout)


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Again when two writers met; a connection that broke is told as it is, whoever asks asks again."""
    for left in reversed(range(_TRIES)):
        try:
            return await call()
        except Met as error:
            if not left:
                raise error.why from error
        except Broken as error:
            raise error.why from error
    raise AssertionError("unreachable")


def _interesting(change: Change) -> bool:
    """True when another instance may have something to do because of it."""
    run = change.run
    return bool(
        change.runs
        or change.touches
        or change.releases
        or change.schedule is not None
        or (run is not None and (run.state in CLAIMABLE or run.cancel is not None))
    )
