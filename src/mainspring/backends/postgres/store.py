"""The PostgreSQL store: the methods of the store port on one schema, which any number of instances share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from mainspring.backends.postgres import (
    apply,
    caller_connections,
    claim,
    due,
    find,
    leases,
    purge,
    restore,
    run_leases,
    run_logs,
)
from mainspring.backends.postgres import keyvalue as kept
from mainspring.backends.postgres.advisory import AdvisoryLocks
from mainspring.backends.postgres.database import Database, upgrade_schema
from mainspring.backends.postgres.log_cursor import PostgresLogCursor
from mainspring.backends.postgres.notifications import Notifications, notification_channel
from mainspring.backends.postgres.settings import PostgresSettings, read_url
from mainspring.backends.postgres.transactional import StoreIdentity, insert_runs
from mainspring.backends.postgres.transactional_sql import READ_IDENTITY
from mainspring.backends.remote.notifications import needs_notification
from mainspring.backends.remote.retries import resend_until_answered, retry_conflicts
from mainspring.model.change import Change, Result
from mainspring.model.errors import InvalidInput, StoreError
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


class PostgresStore:
    """Store on one schema of a PostgreSQL database. The server's clock judges leases and due times."""

    capabilities = Capabilities(durable=True, multi_process=True, own_clock=True, remote=True)
    others_write = True

    def __init__(
        self, url: str | PostgresSettings, clock: Clock | None = None, *, failpoint: Callable[[str], None] | None = None
    ) -> None:
        """Read the settings from the URL, unless `url` has them already; nothing is opened.

        `clock` and `failpoint` are for tests. `clock` takes the place of the server's clock. `failpoint` is called with
        the names of places in the code that are reached. Raises: `InvalidInput` for a wrong URL.
        """
        self.settings = read_url(url) if isinstance(url, str) else url
        self._db = Database(self.settings, clock, failpoint)
        self._notifications = Notifications(self._db)
        self._identity: StoreIdentity | None = None

    def advisory(self) -> AdvisoryLocks:
        """Return a new object that can acquire one advisory lock of the server, for `ms.lock(name, kind="advisory")`.

        Raises: `InvalidInput` if the URL names a pooler and allows no direct connection.
        """
        return AdvisoryLocks(self._db)

    async def exists(self) -> bool:
        return await restore.exists(self.settings)

    async def migrate(self, *, only_print: bool) -> str:
        return await upgrade_schema(self.settings, only_print=only_print)

    async def open(self) -> None:
        await self._db.open()
        try:
            async with self._db.read_only() as session:
                identity = await session.value(READ_IDENTITY)
        except BaseException:  # also a cancellation: no caller closes a store that did not open
            await self._db.close()
            raise
        self._identity = StoreIdentity(
            identity, self.settings.schema, notification_channel(self.settings), self.settings.where
        )

    async def close(self) -> None:
        try:
            await self._notifications.close()
        finally:
            await self._db.close()

    async def due(self, agenda: Agenda, limit: int, *, hold: Ms = 1_000, ahead: Ms = 0, now: Ms | None = None) -> Due:
        return await retry_conflicts(lambda: due.due(self._db, agenda, limit, hold, ahead, now))

    async def apply(
        self, changes: Sequence[Change], *, claim_request: ClaimRequest | None = None, now: Ms | None = None
    ) -> Applied:
        applied = await resend_until_answered(
            lambda resent: apply.apply(self._db, changes, claim_request, now, resent=resent), self.settings.where
        )
        if any(map(needs_notification, changes)):
            self._notifications.request()
        return applied

    def join(
        self, connection: Any, changes: Sequence[Change], *, blocking: bool
    ) -> list[Result] | Awaitable[list[Result]]:
        """Insert the new runs of `changes` in the open transaction of `connection`; return a result for each change.

        With the connection of an async driver, return an awaitable of the results. `blocking`: True if the caller
        cannot await; such a connection is then refused. Statements go to `connection`, not through the pool, in the
        thread of the caller. Raises: `InvalidInput` for a connection that cannot be used; `StoreError` if the store is
        not open.
        """
        identity = self._identity
        if identity is None:
            raise StoreError(f"{self.settings.where} is not open. Call open() first")
        caller = caller_connections.adapt(connection)
        if caller.is_async and blocking:
            raise InvalidInput(
                "connection", "its driver is async", "Write: await task.enqueue(…, connection=connection)"
            )
        steps = insert_runs(changes, identity, self._db.now(None))
        run_steps = caller_connections.run_steps_async if caller.is_async else caller_connections.run_steps
        return run_steps(steps, caller, identity, self._db.qualify)

    async def claim(self, offer: Offer, limit: int, *, ids: Sequence[RunId] = (), now: Ms | None = None) -> Claimed:
        return await retry_conflicts(lambda: claim.claim(self._db, offer, limit, ids, now))

    async def renew(
        self, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, *, now: Ms | None = None
    ) -> Renewed:
        return await retry_conflicts(lambda: run_leases.renew(self._db, owner, leases, ttl, now))

    async def progress(self, run_id: RunId, epoch: int, text: str) -> bool:
        return await retry_conflicts(lambda: run_leases.progress(self._db, run_id, epoch, text))

    async def find(self, query: Query[T]) -> list[T]:
        return await retry_conflicts(lambda: find.find(self._db, query))

    async def tail(self, after: int, limit: int) -> list[Event]:
        return await retry_conflicts(lambda: find.tail(self._db, after, limit))

    def open_cursor(self, position: int | str = 0) -> PostgresLogCursor:
        """Return a cursor in the event log, behind `position`, that misses no event while others write.

        `position`: an event's number, 0 for the beginning, or a text that a cursor returned. Raises: `InvalidInput` if
        the text is not a position.
        """
        return PostgresLogCursor(self._db, position)

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
        return await retry_conflicts(lambda: leases.lease(self._db, name, owner, ttl, epoch, data, now))

    async def release(self, name: str, owner: str, epoch: int, *, now: Ms | None = None) -> bool:
        return await retry_conflicts(lambda: leases.release(self._db, name, owner, epoch))

    async def purge(self, policy: Retention, limit: int, *, now: Ms | None = None) -> Purged:
        return await retry_conflicts(lambda: purge.purge(self._db, policy, limit, now))

    async def append_log(self, entries: Sequence[LogEntry], limit: int) -> None:
        await retry_conflicts(lambda: run_logs.append_log(self._db, entries, limit))

    async def put(self, items: Sequence[KeyValue], *, replace: bool = False, now: Ms | None = None) -> list[bool]:
        return await retry_conflicts(lambda: kept.put(self._db, items, replace, now))

    async def remove(self, kind: str, ids: Sequence[str]) -> int:
        return await retry_conflicts(lambda: kept.remove(self._db, kind, ids))

    async def restore(self, page: Page) -> bool:
        return await retry_conflicts(lambda: restore.restore(self._db, page))

    async def wait(self, timeout: float) -> bool:
        return await self._notifications.wait(timeout)
