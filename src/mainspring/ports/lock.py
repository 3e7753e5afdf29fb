"""The lock port: acquiring a name for a time, so that one owner at most holds it.

Lease rows implement it on every store (ADR 12); a server may add locks of its own (`AdvisoryLockStore`).
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Literal, Protocol, get_args

from msgspec import Struct

from mainspring.model.instant import Duration, Ms

#: What the names of lease rows begin with: those of locks, and those of executions of a fire (`ExecutionGuard`).
LOCK_PREFIX, EXECUTION_PREFIX = "lock:", "execution:"

#: How a lock is held: by a lease row, or by a lock of the store's server.
LockKind = Literal["lease", "advisory"]
LOCK_KINDS: tuple[str, ...] = get_args(LockKind)


class LockHolder(Struct, frozen=True):
    """The present holder of a name, or the last one: `live` is False once the holder has lost or released the name."""

    owner: str
    #: The fencing token of its hold.
    token: int
    live: bool
    #: The text that the owner stored with the hold.
    data: str | None = None


class LockBackend(Protocol):
    """A way to hold names. Each acquisition of a name gets a token greater than all earlier tokens of that name.

    The token is a fencing token: a resource that has seen a greater one must refuse it. `data` is a text that is stored
    with the hold, for `find_holder`.
    """

    async def acquire(self, name: str, owner: str, ttl: Ms, data: str | None = None) -> int | None:
        """Acquire a name for `ttl` milliseconds. Return the token, or None while another owner holds the name."""
        ...

    async def renew(self, name: str, owner: str, token: int, ttl: Ms, data: str | None = None) -> bool:
        """Extend the hold to `ttl` milliseconds from now. Return False if the owner no longer holds the name.

        `data` None: the stored text stays.
        """
        ...

    async def release(self, name: str, owner: str, token: int) -> bool:
        """Give the name up. Return False if the owner no longer held it under this token."""
        ...

    async def find_holder(self, name: str) -> LockHolder | None:
        """Return the present or last holder, None if the name was never held.

        Used for messages, and to find out whether an `acquire` whose answer was lost had succeeded.
        """
        ...


class ExecutionGuard(Protocol):
    """Makes sure that each fire of another scheduler, given by schedule and fire time, is executed by one instance.

    Why: another scheduler may store only state, and then two of its instances can execute one fire.
    """

    def execution_lease(
        self, schedule: str, fire_time: datetime, *, ttl: Duration = "30s", remember: Duration = "1d"
    ) -> AbstractAsyncContextManager[Any]:
        """Return a context manager to enter around the execution of a fire; inside it, the fire is this instance's own.

        Raises `ExecutionTaken` on entry if another instance executes the fire or has executed it. If this process dies,
        the fire is free again after `ttl`. A fire that was executed stays taken for `remember`.
        """
        ...
