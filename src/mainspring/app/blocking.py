"""Blocking calls: run a coroutine to its end in a thread that has no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from mainspring.model.errors import SyncOnLoop

T = TypeVar("T")


class BlockOn(Protocol):
    """Signature of a function that runs a coroutine to its end, blocking, and returns the coroutine's result.

    `instead` is the call that error texts tell the user to await. `block_on` is such a function. A test kit has
    another, which drives the kit's event loop.
    """

    def __call__(self, work: Coroutine[Any, Any, T], instead: str) -> T: ...


def block_on(work: Coroutine[Any, Any, T], instead: str) -> T:
    """Run a coroutine to its end on a new event loop of this thread, and return its result.

    Raises: SyncOnLoop, which quotes `instead` as the call to await, if this thread already runs an event loop.
    """
    try:
        refuse_on_loop(instead)
    except SyncOnLoop:
        work.close()
        raise
    return asyncio.run(work)


def refuse_on_loop(instead: str) -> None:
    """Raise SyncOnLoop if this thread runs an event loop, which a blocking call would stop.

    The error quotes `instead` as the call to await.
    """
    if runs_loop():
        raise SyncOnLoop(f"this thread runs an event loop, a blocking call would stop it; write: await {instead}")


def runs_loop() -> bool:
    """Return True if this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
