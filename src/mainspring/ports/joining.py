"""Enqueueing inside a transaction that is not ours."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, runtime_checkable

from mainspring.model.change import Change, Result


@runtime_checkable
class Joins(Protocol):
    """A store that can write new runs on a caller's own connection: they exist if and only if the caller commits."""

    #: Others may write while the caller's transaction is open. What they would share with it must not make them wait:
    #: gates are stored before, in a commit of the store's own, and a payload gets a name of its own.
    others_write: bool

    def join(
        self, connection: Any, changes: Sequence[Change], *, blocking: bool
    ) -> list[Result] | Awaitable[list[Result]]:
        """Write births on `connection`, on the thread that calls; an awaitable when the connection's driver is async.

        `blocking`: whoever calls cannot await, so such a connection is refused.
        """
        ...
