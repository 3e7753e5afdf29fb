"""A wake-up that costs nothing when nobody waits; safe from any thread."""

from __future__ import annotations

import asyncio
import threading


class Hints:
    """Many waiters, any thread may notify; a notification between two waits is not lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    def notify(self) -> None:
        """Wake everyone who waits now."""
        if not self._waiters:
            return
        with self._lock:
            waiters, self._waiters = self._waiters, set()
        for loop, future in waiters:
            loop.call_soon_threadsafe(_wake, future)

    async def wait(self, timeout: float) -> bool:
        """True when notified within `timeout` seconds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        entry = (loop, future)
        with self._lock:
            self._waiters.add(entry)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiters.discard(entry)
        return True


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
