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
    """A store that can insert runs on a caller's own connection: the runs exist if and only if the caller commits."""

    #: True if other connections can write while the caller's transaction is open. They must not wait for it, so rows
    #: that they may share with it are kept out of it: gates are stored before, in a commit of the store's own, and a
    #: payload gets an id that no other run uses.
    others_write: bool

    def join(
        self, connection: Any, changes: Sequence[Change], *, blocking: bool
    ) -> list[Result] | Awaitable[list[Result]]:
        """Apply changes that insert new runs, in the open transaction of `connection`. Return a result for each change.

        With the connection of an async driver, return an awaitable of the results. With `blocking` the caller cannot
        await, so such a connection is refused. Thread: the caller's.
        """
        ...


@runtime_checkable
class InlineStore(Protocol):
    """A store whose methods finish on the calling thread and wait for nothing but the disk, so any thread may write.

    ADR 18: single runs are written on the caller's thread.
    """

    def open_beside(self) -> Store:
        """Return a second store object on the data of this one, not open yet.

        While another connection writes, its writes raise `StoreUnavailable` instead of waiting; nothing is written.
        """
        ...


@runtime_checkable
class AdvisoryLockStore(Protocol):
    """A store whose server has locks of its own, for `ms.lock(name, kind="advisory")`."""

    def advisory(self) -> LockBackend:
        """Return an object that can acquire one of the server's locks; a further lock needs another object."""
        ...


@runtime_checkable
class ServerStore(Protocol):
    """A store on a server, where `open` creates the schema if it is missing.

    Why: a command that only reads can ask with `exists` first, and need not create a store by opening it.
    """

    async def exists(self) -> bool:
        """Return True if a store was created at this store's URL before. Creates nothing."""
        ...


@runtime_checkable
class MigratableStore(Protocol):
    """A store whose schema `mainspring migrate` brings up to date."""

    async def migrate(self, *, only_print: bool) -> str:
        """Bring the schema up to date. Return the SQL that was run, or a line which states that nothing was to do.

        With `only_print`, change nothing and return the SQL that would run.
        """
        ...


@runtime_checkable
class CursorStore(Protocol):
    """A store in which an event may become visible after events with greater numbers, so it has cursors of its own.

    Why: a `SequentialCursor` would skip such a late event.
    """

    def open_cursor(self, position: int | str = 0) -> LogCursor:
        """Return a cursor that reads the events of the log behind a position.

        Raises `InvalidInput` if the text is not a position.
        """
        ...
