"""A wake-up: lets any thread wake the tasks that wait for it, on any event loops."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading


class Wakeup:
    """Lets tasks wait for a notification from any thread, like a condition variable whose lock callers need not hold.

    A task that searches for work before it waits should first read `latest`, then search, then call
    `wait(timeout, since)` with the value read. A notification between the search and the wait then ends the wait at
    once. Without a waiting task, `notify` takes no lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        # Not `latest += 1`: two threads may interleave there and store a number that a waiter has already read.
        self._numbers = itertools.count(1)
        #: The number of a recent notification, 0 before the first one. It changes with every `notify`.
        self.latest = 0

    def notify(self) -> None:
        """Wake all waiting tasks. Thread: any."""
        self.latest = next(self._numbers)  # before `_waiters` is read: `wait` does the two in the opposite order
        if not self._waiters:
            return
        with self._lock:
            waiters, self._waiters = self._waiters, set()
        for loop, future in waiters:
            with contextlib.suppress(RuntimeError):  # the waiter's loop was closed meanwhile
                loop.call_soon_threadsafe(_resolve, future)

    async def wait(self, timeout: float, since: int | None = None) -> bool:
        """Wait up to `timeout` seconds for a notification. Return True if one arrived, False after the time-out.

        `since`: a value of `latest` that the caller read before; a notification since then ends the wait at once. With
        None, only notifications from now on count.
        """
        loop = asyncio.get_running_loop()
        entry = (loop, loop.create_future())
        with self._lock:
            self._waiters.add(entry)
        try:
            if since is not None and self.latest != since:
                return True
            async with asyncio.timeout(timeout):
                await entry[1]
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiters.discard(entry)
        return True


def _resolve(future: asyncio.Future[None]) -> None:
    """End the wait of a task, unless it has ended already. Thread: the event loop of the task."""
    if not future.done():
        future.set_result(None)
