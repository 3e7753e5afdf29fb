"""The Redis store: the port's verbs on the keys of one prefix, one script a call, shared by any number of instances."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from mainspring.model.change import Change
from mainspring.model.errors import StoreUnavailable
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
from mainspring.stores.redis import apply, claim, due, find, kept, leases, purge, restore
from mainspring.stores.redis.database import Database
from mainspring.stores.redis.errors import Broken, unknown
from mainspring.stores.redis.notices import Notices
from mainspring.stores.redis.settings import RedisSettings, read_url

T = TypeVar("T")
#: So long a write whose answer is lost is sent again, in seconds; then its caller hears that nobody knows.
_RESEND_SECONDS = 8.0
_RESEND_PAUSE = 0.1


#: What is kept where nobody says how long: everything is in memory here.
DAY: Ms = 86_400_000


class RedisStore:
    """A small pool of connections to one primary; the server's clock decides."""

    capabilities = Capabilities(
        durable=True,
        multi_process=True,
        transactional=False,
        notifies=True,
        own_clock=True,
        remote=True,
        history=DAY,
        ended_runs=200_000,
    )

    def __init__(
        self, url: str | RedisSettings, clock: Clock | None = None, *, failpoint: Callable[[str], None] | None = None
    ) -> None:
        self.settings = read_url(url) if isinstance(url, str) else url
        self._db = Database(self.settings, clock, failpoint)
        self._notices = Notices(self._db)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What should be mended on the server, for people."""
        return self._db.warnings

    async def open(self) -> None:
        await self._db.open()

    async def close(self) -> None:
        await self._notices.close()
        await self._db.close()

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        found = await _plainly(due.due(self._db, agenda, limit, hold, ahead, now))
        if found.unparked:
            self._notices.tell()
        return found

    async def apply(self, changes: Sequence[Change], *, wish: Wish | None = None, now: Ms | None = None) -> Applied:
        await _plainly(self._db.memory.admit(self._db, changes))
        applied = await self._apply(changes, wish, now)
        if any(map(_interesting, changes)):
            self._notices.tell()
        return applied

    async def _apply(self, changes: Sequence[Change], wish: Wish | None, now: Ms | None) -> Applied:
        """Once sent, a batch whose answer is lost is sent again under the same ids: what holds answers `repeated`."""
        sent: Broken | None = None
        loop = asyncio.get_running_loop()
        deadline = 0.0
        while True:
            try:
                return await apply.apply(self._db, changes, wish, now)
            except Broken as error:
                deadline = deadline or loop.time() + _RESEND_SECONDS
                sent = error
            except StoreUnavailable:
                if sent is None:
                    raise
            if loop.time() > deadline:
                raise unknown(sent.why, self.settings.where) from sent
            await asyncio.sleep(_RESEND_PAUSE)

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[RunId] = (), now: Ms | None = None) -> Claimed:
        return await _plainly(claim.claim(self._db, offer, limit, ids, now))

    async def renew(
        self, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, *, now: Ms | None = None
    ) -> Renewed:
        return await _plainly(claim.renew(self._db, owner, leases, ttl, now))

    async def progress(self, run_id: RunId, epoch: int, text: str) -> bool:
        return await _plainly(claim.progress(self._db, run_id, epoch, text))

    async def find(self, query: Query[T]) -> list[T]:
        return await _plainly(find.find(self._db, query))

    async def tail(self, after: int, limit: int) -> list[Event]:
        return await _plainly(find.tail(self._db, after, limit))

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
        return await _plainly(leases.lease(self._db, name, owner, ttl, epoch, data, now))

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        return await _plainly(leases.release(self._db, name, owner, epoch))

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        return await _plainly(purge.purge(self._db, policy, limit, now))

    async def keep(self, items: Sequence[Kept], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        return await _plainly(kept.keep(self._db, items, replace, now))

    async def forget(self, kind: str, ids: Sequence[str]) -> int:
        return await _plainly(kept.forget(self._db, kind, ids))

    async def restore(self, page: Page) -> bool:
        return await _plainly(restore.restore(self._db, page))

    async def wait(self, timeout: float) -> bool:
        return await self._notices.wait(timeout)


async def _plainly(call: Awaitable[T]) -> T:
    """A connection that broke is told as it is: whoever asks asks again."""
    try:
        return await call
    except Broken as error:
        raise error.why from error


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
