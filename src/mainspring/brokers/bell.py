"""A wake-up for waiters on any loop; a ring between a look and the wait for it is not lost."""

from __future__ import annotations

import asyncio
import threading


class Bell:
    """Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        #: Look at this before you look at anything else.
        self.rings = 0

    def ring(self) -> None:
        """Wake everyone who waits, and who is about to."""
        with self._lock:
            self.rings += 1
            waiters, self._waiters = self._waiters, set()
        for loop, future in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, future)

    async def wait(self, since: int, timeout: float) -> bool:
        """True when it rang since then, or does within `timeout` seconds."""
        loop = asyncio.get_running_loop()
        entry = (loop, loop.create_future())
        with self._lock:
            if self.rings != since:
                return True
            self._waiters.add(entry)
        try:
            async with asyncio.timeout(timeout):
                await entry[1]
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiters.discard(entry)
        return True


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
