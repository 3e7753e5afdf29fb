"""The lock port: acquiring a name for a time. Lease rows do it on every store; a server may have locks of its own."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Literal, Protocol, get_args

from msgspec import Struct

from mainspring.model.instant import Duration, Ms

#: Prefixes of the names of lease rows: of locks, and of executions of a fire (`ExecutionGuard`).
LOCK_PREFIX, EXECUTION_PREFIX = "lock:", "execution:"

LockKind = Literal["lease", "advisory"]
LOCK_KINDS: tuple[str, ...] = get_args(LockKind)


class LockHolder(Struct, frozen=True):
    """The present or last holder of a name; `live` is False once it holds the name no more."""

    owner: str
    token: int
    live: bool
    data: str | None = None


class LockBackend(Protocol):
    """A way to hold names. Each acquisition of a name has a token greater than all earlier tokens of that name."""

    async def acquire(self, name: str, owner: str, ttl: Ms, data: str | None = None) -> int | None:
        """Acquire a name for `ttl` milliseconds. Return the token, or None while another owner holds the name."""
        ...

    async def renew(self, name: str, owner: str, token: int, ttl: Ms, data: str | None = None) -> bool:
        """Extend the hold to `ttl` milliseconds from now. Return False if the owner no longer holds the name."""
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
    """Makes sure that each (schedule, fire time) has at most one executor at a time.

    Needed beside a scheduler that stores only state, because its store alone does not promise that.
    """

    def execution_lease(
        self, schedule: str, fire_time: datetime, *, ttl: Duration = "30s", remember: Duration = "1d"
    ) -> AbstractAsyncContextManager[Any]:
        """Return a context manager to enter around the execution of a fire.

        Raises `ExecutionTaken` on entry if another instance executes the fire or has executed it. An execution is
        remembered for `remember`.
        """
        ...
