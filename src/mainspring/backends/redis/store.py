"""The Redis store: the methods of the store port as Lua scripts on the keys of one prefix.

Any number of instances share the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from mainspring.backends.redis import apply, claim, due, find, keyvalue, leases, purge, restore, run_logs
from mainspring.backends.redis.database import Database
from mainspring.backends.redis.notifications import Notifications
from mainspring.backends.redis.settings import RedisSettings, read_url
from mainspring.backends.remote.notifications import needs_notification
from mainspring.backends.remote.retries import resend_until_answered, translate_failures
from mainspring.model.change import Change
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
#: Default history, a day: short, because Redis holds all data in memory.
_DEFAULT_HISTORY_MS: Ms = 86_400_000


class RedisStore:
    """Store on one Redis or Valkey primary. Leases and due times are judged by the server's clock.

    `url`: the store's URL, or its settings already read. `clock` and `failpoint` are for tests: a clock in place of the
    server's, and a function that is called with the names of places in the code. Raises: InvalidInput for a wrong URL.
    """

    capabilities = Capabilities(
        durable=True,
        multi_process=True,
        own_clock=True,
        remote=True,
        history=_DEFAULT_HISTORY_MS,
        ended_runs=200_000,
        logs_limit=64 << 20,
    )

    def __init__(
        self, url: str | RedisSettings, clock: Clock | None = None, *, failpoint: Callable[[str], None] | None = None
    ) -> None:
        self.settings = read_url(url) if isinstance(url, str) else url
        self._db = Database(self.settings, clock, failpoint)
        self._notifications = Notifications(self._db)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence, with the fix, for each setting of the server that endangers data; () before `open`."""
        return self._db.warnings

    async def exists(self) -> bool:
        return await restore.exists(self.settings)

    async def open(self) -> None:
        await self._db.open()

    async def close(self) -> None:
        try:
            await self._notifications.close()
        finally:
            await self._db.close()

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        found = await translate_failures(due.due(self._db, agenda, limit, hold, ahead, now))
        if found.unparked:
            self._notifications.request()
        return found

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: Ms | None = None
    ) -> Applied:
        await translate_failures(self._db.memory.check_room(self._db, changes))
        applied = await resend_until_answered(
            lambda resent: apply.apply(self._db, changes, claim_request, now), self.settings.where
        )
        if any(map(needs_notification, changes)):
            self._notifications.request()
        return applied

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[RunId] = (), now: Ms | None = None) -> Claimed:
        return await translate_failures(claim.claim(self._db, offer, limit, ids, now))

    async def renew(
        self, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, *, now: Ms | None = None
    ) -> Renewed:
        return await translate_failures(claim.renew(self._db, owner, leases, ttl, now))

    async def progress(self, run_id: RunId, epoch: int, text: str) -> bool:
        return await translate_failures(claim.progress(self._db, run_id, epoch, text))

    async def find(self, query: Query[T]) -> list[T]:
        return await translate_failures(find.find(self._db, query))

    async def tail(self, after: int, limit: int) -> list[Event]:
        return await translate_failures(find.tail(self._db, after, limit))

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
        return await translate_failures(leases.lease(self._db, name, owner, ttl, epoch, data, now))

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        return await translate_failures(leases.release(self._db, name, owner, epoch))

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        return await translate_failures(purge.purge(self._db, policy, limit, now))

    async def append_log(self, entries: Sequence[LogEntry], limit: int) -> None:
        await translate_failures(run_logs.append_log(self._db, entries, limit))

    async def put(self, items: Sequence[KeyValue], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        return await translate_failures(keyvalue.put(self._db, items, replace, now))

    async def remove(self, kind: str, ids: Sequence[str]) -> int:
        return await translate_failures(keyvalue.remove(self._db, kind, ids))

    async def restore(self, page: Page) -> bool:
        return await translate_failures(restore.restore(self._db, page))

    async def wait(self, timeout: float) -> bool:
        return await self._notifications.wait(timeout)
