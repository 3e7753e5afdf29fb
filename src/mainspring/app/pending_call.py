"""Pending calls: what `enqueue(…)` returns, a coroutine that says so in the log if it is thrown away unused."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("mainspring")


class PendingCall(Generic[T]):
    """A coroutine around another one, for `await`, `asyncio.create_task`, `asyncio.gather` and the like.

    If it was neither awaited nor closed when it is deleted, an ERROR says that nothing was enqueued. Why: the call
    reads like the blocking one of other queues, and Python's own warning is often hidden.
    """

    __slots__ = ("_coroutine", "_is_used", "_task", "_verb")

    def __init__(self, coroutine: Coroutine[Any, Any, T], task: str, verb: str) -> None:
        """`coroutine` does the work of the method `verb` of the task named `task`."""
        self._coroutine = coroutine
        self._is_used = False
        self._task = task
        self._verb = verb

    def __await__(self) -> Generator[Any, Any, T]:
        self._is_used = True
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        self._is_used = True
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        self._is_used = True
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._is_used = True
        self._coroutine.close()

    def __del__(self) -> None:
        if self._is_used:
            return
        self._coroutine.close()  # else Python would warn of it, too
        call, sync_call = f"{self._task}.{self._verb}(…)", f"{self._task}.sync.{self._verb}(…)"
        log.error(
            "nothing was enqueued: %s was not awaited. Write `await %s`, or in code without an event loop `%s`",
            call,
            call,
            sync_call,
            stacklevel=2,  # the line that threw it away
        )

    def __repr__(self) -> str:
        return f"<call of {self._task}.{self._verb}(…)>"


Coroutine.register(PendingCall)


def coroutine_function(function: F) -> F:
    """Return `function`, which returns a `PendingCall`, marked as what an `async def` defines.

    Why: frameworks ask `iscoroutinefunction`, for example to choose between the loop and a thread for a background
    task: a thread would throw the call away.
    """
    mark: Any = getattr(inspect, "markcoroutinefunction", None)  # since Python 3.12
    if mark is not None:
        marked: F = mark(function)
        return marked
    function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # what asyncio tests for
    return function
