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
    """A store that can insert runs in a caller's own transaction: they exist if and only if the caller commits it."""

    #: True if other connections can write while the caller's transaction is open. They must not wait for that
    #: transaction. So `join` writes no row in it that they may also write: gates are stored before, in a commit of the
    #: store's own, and a payload gets an id that no other run uses.
    others_write: bool

    def join(
        self, connection: Any, changes: Sequence[Change], *, blocking: bool
    ) -> list[Result] | Awaitable[list[Result]]:
        """Apply changes that insert new runs, in the open transaction of `connection`. Return a result for each change.

        If `connection` belongs to an async driver, return an awaitable of the results. `blocking`: the caller cannot
        await, so a connection of an async driver is refused. Thread: the caller's.
        """
        ...


@runtime_checkable
class InlineStore(Protocol):
    """A store whose methods work on the calling thread and wait for nothing but the disk.

    Why: a caller can write a single run on its own thread, without waiting for the engine's (ADR 18).
    """

    def open_beside(self) -> Store:
        """Return a second store object for the data of this store, not open yet.

        If another connection is writing, a write through the second object writes nothing and raises
        `StoreUnavailable`, instead of waiting.
        """
        ...


@runtime_checkable
class AdvisoryLockStore(Protocol):
    """A store whose server has locks of its own, for `ms.lock(name, kind="advisory")`."""

    def advisory(self) -> LockBackend:
        """Return a new object that can acquire one lock of the server. Each lock needs an object of its own."""
        ...


@runtime_checkable
class ServerStore(Protocol):
    """A store on a server, where `open` would create a store that is missing.

    Why: a command that only reads calls `exists` first, so that it creates nothing.
    """

    async def exists(self) -> bool:
        """Return True if there is a store at this URL already; create nothing.

        On PostgreSQL, this is True if the schema exists; on Redis, if an event was ever written.
        """
        ...


@runtime_checkable
class MigratableStore(Protocol):
    """A store with a versioned schema, which `mainspring migrate` brings up to date."""

    async def migrate(self, *, only_print: bool) -> str:
        """Bring the schema up to date. Return a line "step N: name" for each step that was run.

        If nothing is to be done, return a line that says so. With `only_print`, change nothing and return the SQL that
        would run.
        """
        ...


@runtime_checkable
class CursorStore(Protocol):
    """A store in which an event may become visible after events with greater numbers.

    It needs cursors of its own, because a `SequentialCursor` would skip such an event.
    """

    def open_cursor(self, position: int | str = 0) -> LogCursor:
        """Return a cursor that reads the events of the log after a position; 0 is the beginning of the log.

        Raises `InvalidInput` if the text is not a position.
        """
        ...
