"""Stopping: the first request drains, the second stops at once; by signal or by hand."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any


class Stopper:
    """Counts requests to stop; belongs to the loop it is made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._first = asyncio.Event()
        self._second: Callable[[], object] | None = None
        self._at_once: Callable[[], object] | None = None
        self.requests = 0

    def request(self) -> None:
        """Ask to stop; from any thread."""
        self._loop.call_soon_threadsafe(self._count)

    def _count(self) -> None:
        self.requests += 1
        self._first.set()
        if self.requests >= 2 and self._second is not None:
            self._second()

    def on_second(self, call: Callable[[], object]) -> None:
        """What the second request does; at once when it came already."""
        self._second = call
        if self.requests >= 2:
            call()

    def at_once(self, call: Callable[[], object]) -> None:
        """What every signal does before the loop hears of it, which a blocking handler may delay; it must not block."""
        self._at_once = call

    async def wait(self) -> None:
        """Return at the first request."""
        await self._first.wait()

    async def first_of(self, work: Coroutine[Any, Any, None]) -> None:
        """Return when the work is done or at the first request."""
        done = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._first.wait())
        try:
            await asyncio.wait([done, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:  # also when whoever waits gives up
            rest = [task for task in (done, stop) if not task.done()]
            for task in rest:
                task.cancel()
            if rest:  # to await one of them would take a cancellation from outside for its own
                await asyncio.gather(*rest, return_exceptions=True)
        if done.done() and not done.cancelled():
            done.result()

    @contextlib.contextmanager
    def on_signals(self, *numbers: signal.Signals) -> Iterator[None]:
        """Let signals request a stop; in a thread that is not the main one, signals stay as they are."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in numbers:
            self._loop.add_signal_handler(number, self._count)
            # The loop hears by a file descriptor, so what Python calls between two instructions is free for us.
            signal.signal(number, self._heard)
            signal.siginterrupt(number, False)
        try:
            yield
        finally:
            for number in numbers:
                self._loop.remove_signal_handler(number)

    def _heard(self, _number: int, _frame: object) -> None:
        if self._at_once is not None:
            self._at_once()
