"""A future that ends after a delay.

Its timer wakes the waiting task in one turn of the event loop; `asyncio.sleep` needs two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class TimerFuture:
    """A future that is done after `seconds`, for one task that awaits it once, on its own loop.

    It saves a turn of the loop: an ordinary future that a timer resolves wakes its task one turn later; here the timer
    wakes the task directly. asyncio accepts it as a future because it has `_asyncio_future_blocking`.
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
        """Start the timer. The task calls this when it begins to wait; `wake` resumes the task."""
        self._wake = wake, context
        self._timer = self._loop.call_later(self._seconds, wake, self, context=context)

    def cancel(self, msg: object = None) -> bool:
        """Wake the task at once, because it is being cancelled. Return False: the task raises the error itself."""
        if self._timer is not None and self._wake is not None:
            self._timer.cancel()
            self._timer = None
            wake, context = self._wake
            self._loop.call_soon(wake, self, context=context)
        return False

    def result(self) -> None:
        """Return nothing. The task calls this when it resumes."""
