"""The lock port: ways to hold a name for a time. Lease rows do it on every store; a server may have another."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Literal, Protocol, get_args

from msgspec import Struct

from mainspring.model.instant import Duration, Ms

#: How the names of lease rows begin.
LOCK, EXECUTION = "lock:", "execution:"

LockKind = Literal["lease", "advisory"]
LOCK_KINDS: tuple[str, ...] = get_args(LockKind)


class Holder(Struct, frozen=True):
    """Who holds a name, or held it last."""

    owner: str
    token: int
    live: bool
    data: str | None = None


class Locker(Protocol):
    """Whoever holds a name has a token that is greater than every one given for that name before."""

    async def take(self, name: str, owner: str, ttl: Ms, data: str | None = None) -> int | None:
        """The token, or None while somebody holds the name."""
        ...

    async def renew(self, name: str, owner: str, token: int, ttl: Ms, data: str | None = None) -> bool:
        """Hold it for another `ttl` from now; False when it is held no more."""
        ...

    async def release(self, name: str, owner: str, token: int) -> bool:
        """Let go; False when somebody else holds it or took it meanwhile."""
        ...

    async def holder(self, name: str) -> Holder | None:
        """Who holds or held it last, for messages and for a `take` whose answer was lost."""
        ...


class HasAdvisory(Protocol):
    """A store whose server has locks of its own: `ms.lock(name, kind="advisory")`."""

    def advisory(self) -> Locker: ...


class ExecutionGuard(Protocol):
    """At most one holder at a time of each (schedule, fire time); a store of state alone does not promise that."""

    def execution_lease(
        self, schedule: str, fire_time: datetime, *, ttl: Duration = "30s", remember: Duration = "1d"
    ) -> AbstractAsyncContextManager[Any]:
        """Enter to execute the fire; `ExecutionTaken` when another does or did."""
        ...
