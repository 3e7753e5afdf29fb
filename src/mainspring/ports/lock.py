"""The lock port: how a name is acquired for a time, so that at most one owner holds it.

Every store implements it with lease rows (ADR 12). A store on a server may offer the server's own locks as well
(`AdvisoryLockStore`).
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Literal, Protocol, get_args

from msgspec import Struct

from mainspring.model.instant import Duration, Ms

#: How the names of lease rows begin: those of locks, and those for the execution of a fire (`ExecutionGuard`).
LOCK_PREFIX, EXECUTION_PREFIX = "lock:", "execution:"

#: How a lock is held: by a lease row, or by a lock of the store's server.
LockKind = Literal["lease", "advisory"]
LOCK_KINDS: tuple[str, ...] = get_args(LockKind)


class LockHolder(Struct, frozen=True):
    """The present or last holder of a lock.

    `live` is False once the store knows that the lock was released or lost. An advisory lock (one of the server's own
    locks) is lost when its connection breaks. The store does not notice that, so `live` then stays True until the lock
    is released or acquired again.
    """

    owner: str
    #: The fencing token with which the owner acquired the lock.
    token: int
    live: bool
    #: The text that the owner stored with the lock.
    data: str | None = None


class LockBackend(Protocol):
    """A kind of lock, acquired by name. Each acquisition gets a token, greater than all earlier tokens of that name.

    The token is a fencing token: a resource that has seen a greater token must refuse a smaller one. The owner may
    store a text, `data`, which `find_holder` returns.
    """

    async def acquire(self, name: str, owner: str, ttl: Ms, data: str | None = None) -> int | None:
        """Acquire a name for `ttl` milliseconds. Return the token, or None while the name is held.

        For a lock by lease row, return None also if `owner` itself holds the name. A server's own lock does not end
        after `ttl`.
        """
        ...

    async def renew(self, name: str, owner: str, token: int, ttl: Ms, data: str | None = None) -> bool:
        """Extend the lock to `ttl` milliseconds from now. Return False if the owner no longer holds it under `token`.

        `data` None: the stored text stays as it is. A server's own lock is only checked: nothing is extended or stored.
        """
        ...

    async def release(self, name: str, owner: str, token: int) -> bool:
        """Release the name. Return False if the owner no longer held it under this token."""
        ...

    async def find_holder(self, name: str) -> LockHolder | None:
        """Return the present or last holder of a name; None if it was never acquired.

        The result is used in messages, and to find out whether an `acquire` whose answer was lost succeeded.
        """
        ...


class ExecutionGuard(Protocol):
    """Makes sure that at most one instance executes a fire of another scheduler.

    Why: a scheduler that stores only its state, without claims, may execute one fire in two of its instances. A fire is
    named by its schedule and fire time.
    """

    def execution_lease(
        self, schedule: str, fire_time: datetime, *, ttl: Duration = "30s", remember: Duration = "1d"
    ) -> AbstractAsyncContextManager[Any]:
        """Return a context manager inside which the caller alone may execute a fire.

        Entering it raises `ExecutionTaken` if another instance executes the fire or has executed it. If this process
        dies inside it, the fire is free again after `ttl`. A fire that was executed stays taken for `remember`.
        """
        ...
