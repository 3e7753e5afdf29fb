"""Shutdown requests: the first drains, the second stops at once; they come from signals or from calls."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any


class Stopper:
    """Counts requests to stop on the event loop on which it was made, and lets tasks of that loop wait for one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._first = asyncio.Event()
        self._second: Callable[[], object] | None = None
        self._at_once: Callable[[], object] | None = None
        #: Number of requests so far.
        self.requests = 0

    def request(self) -> None:
        """Request a stop. Thread: any."""
        self._loop.call_soon_threadsafe(self._count)

    def _count(self) -> None:
        self.requests += 1
        self._first.set()
        if self.requests >= 2 and self._second is not None:
            self._second()

    def on_second(self, call: Callable[[], object]) -> None:
        """Set the function that the second request calls; it is called at once if that request came already."""
        self._second = call
        if self.requests >= 2:
            call()

    def at_once(self, call: Callable[[], object]) -> None:
        """Set a function that each signal calls inside the signal handler; it must not block.

        Why: the event loop counts the request, and a handler that blocks the loop may delay that.
        """
        self._at_once = call

    async def wait(self) -> None:
        """Return at the first request."""
        await self._first.wait()

    async def first_of(self, work: Coroutine[Any, Any, None]) -> None:
        """Return when `work` is done, or cancel it at the first request and return. Raises what `work` raises."""
        done = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._first.wait())
        try:
            await asyncio.wait([done, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:  # also if the caller is cancelled
            rest = [task for task in (done, stop) if not task.done()]
            for task in rest:
                task.cancel()
            if rest:  # a single task would take the caller's cancellation for its own
                await asyncio.gather(*rest, return_exceptions=True)
        if done.done() and not done.cancelled():
            done.result()

    @contextlib.contextmanager
    def on_signals(self, *numbers: signal.Signals) -> Iterator[None]:
        """Let each of these signals request a stop inside the block; outside the main thread, change nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in numbers:
            self._loop.add_signal_handler(number, self._count)
            # The loop is notified by a file descriptor, so that Python's own signal handler can be ours.
            signal.signal(number, self._on_signal)
            signal.siginterrupt(number, False)
        try:
            yield
        finally:
            for number in numbers:
                self._loop.remove_signal_handler(number)

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._at_once is not None:
            self._at_once()
