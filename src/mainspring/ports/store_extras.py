"""Optional abilities of a store. Each is a Protocol; code asks a store for it with `isinstance`."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mainspring.model.change import Change, Result
from mainspring.ports.lock import LockBackend
from mainspring.ports.store import Store

if TYPE_CHECKING:
    from mainspring.ports.log_cursor import LogCursor


@runtime_checkable
class TransactionalStore(Protocol):
    """A store that can insert runs on a caller's own connection: they exist if and only if the caller commits."""

    #: Other connections can write while the caller's transaction is open, and must not wait for it. So rows that they
    #: may share with it are kept out of it: gates are stored before, in a commit of the store's own, and a payload
    #: gets an id that no other run uses.
    others_write: bool

    def join(
        self, connection: Any, changes: Sequence[Change], *, blocking: bool
    ) -> list[Result] | Awaitable[list[Result]]:
        """Insert new runs on `connection`. Return their results, or an awaitable of them for an async driver.

        Thread: the caller's. With `blocking` the caller cannot await, so the connection of an async driver is refused.
        """
        ...


@runtime_checkable
class InlineStore(Protocol):
    """A store whose methods finish on the thread that calls them, and wait for the disk at most."""

    def open_beside(self) -> Store:
        """Return another store object on the same data, not yet open.

        It raises `StoreUnavailable` instead of waiting for another writer; nothing was written then.
        """
        ...


@runtime_checkable
class AdvisoryLockStore(Protocol):
    """A store whose server has locks of its own, for `ms.lock(name, kind="advisory")`."""

    def advisory(self) -> LockBackend:
        """Return the server's locks, for one acquisition."""
        ...


@runtime_checkable
class ServerStore(Protocol):
    """A store on a server, where `open` creates the schema if it is missing."""

    async def exists(self) -> bool:
        """Return True if a store was created at this URL before. Creates nothing."""
        ...


@runtime_checkable
class MigratableStore(Protocol):
    """A store whose schema `mainspring migrate` brings up to date."""

    async def migrate(self, *, only_print: bool) -> str:
        """Bring the schema up to date and return the SQL that was run, or a line that there was nothing to do.

        With `only_print` change nothing and return the SQL that would run.
        """
        ...


@runtime_checkable
class CursorStore(Protocol):
    """A store in which event numbers may become visible out of order, and which therefore has a cursor of its own."""

    def open_cursor(self, position: int | str = 0) -> LogCursor:
        """Return a cursor behind a position of the log.

        Raises `InvalidInput` if the text is not a position.
        """
        ...
