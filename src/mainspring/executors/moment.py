"""A moment to wait for that costs one turn of the loop, where `asyncio.sleep` costs two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Moment:
    """Awaited once, by one task, on its own loop.

    A future that a timer resolves has the task woken in the loop's next turn; here the timer itself wakes it. It is a
    future as far as tasks care (`asyncio.isfuture`).
    """

    __slots__ = ("_asyncio_future_blocking", "_loop", "_seconds", "_timer", "_wake")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._asyncio_future_blocking = False
        self._timer: asyncio.TimerHandle | None = None
        self._wake: tuple[Callable[[Any], object], Context | None] | None = None

    def __await__(self) -> Generator[Any, None, None]:
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Called by the task when it begins to wait."""
        self._wake = wake, context
        self._timer = self._loop.call_later(self._seconds, wake, self, context=context)

    def cancel(self, msg: object = None) -> bool:
        """The task that waits is cancelled: it is woken now, and raises that itself."""
        if self._timer is not None and self._wake is not None:
            self._timer.cancel()
            self._timer = None
            wake, context = self._wake
            self._loop.call_soon(wake, self, context=context)
        return False

    def result(self) -> None:
        """Called by the task when it goes on."""
