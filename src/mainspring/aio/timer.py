"""A future that is done after a delay, as a quicker `asyncio.sleep`.

Its timer wakes the waiting task in one turn of the event loop; `asyncio.sleep` needs two turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class TimerFuture:
    """A future that is done `seconds` after a task begins to await it. One task may await it, once, on the loop `loop`.

    It saves a turn of the loop. An ordinary future that a timer resolves wakes its task one turn later; here the timer
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
        """Let the awaiting task wait for this future, as asyncio's own futures do."""
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of the future. asyncio checks that the awaiting task runs on it."""
        return self._loop

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Start the timer, which calls `wake` in `context`. asyncio calls this when the task begins to wait.

        `wake` is asyncio's own function that resumes the task.
        """
        self._wake = wake, context
        self._timer = self._loop.call_later(self._seconds, wake, self, context=context)

    def cancel(self, msg: object = None) -> bool:
        """Wake the waiting task at once; asyncio calls this when that task is cancelled.

        Always return False: asyncio then raises `CancelledError` in the task itself. `msg` is ignored.
        """
        if self._timer is not None and self._wake is not None:
            self._timer.cancel()
            self._timer = None
            wake, context = self._wake
            self._loop.call_soon(wake, self, context=context)
        return False

    def result(self) -> None:
        """Return None, the value of the `await`. asyncio calls this when the task resumes."""
