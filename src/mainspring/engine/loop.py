"""The base of every engine loop: start, stop, wake, and back off while the store fails."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from mainspring.model.errors import StoreError

log = logging.getLogger("mainspring.engine")

#: The longest pause of a loop between two tries while the store fails, in seconds.
MAX_STORE_BACKOFF_SECONDS = 2.0
#: Added to sleeps on other event loops than asyncio's own (uvloop): their timers count whole milliseconds, so half of
#: them end early, and `run_once` would be called in vain until the time has come.
TIMER_ROUNDING_SECONDS = 0.0005


class Loop(ABC):
    """Calls `run_once` again and again; each call does one bounded piece of work and returns how long to wait.

    Thread: engine loop.
    """

    name = "loop"

    def __init__(self, poll: float) -> None:
        """`poll`: the longest wait between two pieces of work, in seconds."""
        self.poll = poll
        #: Failures since the last piece of work that succeeded.
        self.failures = 0
        #: Error text of the last piece of work; None if it succeeded.
        self.trouble: str | None = None
        #: When the piece of work under way began, in the event loop's time; None between two pieces.
        self.since: float | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def run_once(self) -> float:
        """Do one piece of work. Return the seconds until there may be more; the loop waits at most `poll` of them.

        The loop catches an error that this raises, logs it, and calls again after a pause.
        """

    def start(self) -> None:
        """Start the loop in a task of the running event loop; a second call changes nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._loop(), name=f"mainspring-{self.name}")

    async def stop(self) -> None:
        """Cancel the loop, also in the middle of a piece of work, and return when its task has ended.

        A loop that does not run stays as it is. An error that had ended the loop before is logged and not raised.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            except Exception:  # an error that ended this loop must not keep the others from stopping
                log.exception("%s: an error had ended this loop", self.name)

    def wake(self) -> None:
        """Have `run_once` called now, or right after a piece of work that is under way: something changed.

        A pause after an error is not cut short.
        """
        self._wake.set()

    async def _loop(self) -> None:
        """Call `run_once` until `stop`; wait in between as it says, or for a growing pause after an error."""
        loop, own = asyncio.get_running_loop(), asyncio.current_task()
        while (
            self._task is own
        ):  # a driver may swallow the cancellation of a stop (`wait_for` does, before Python 3.12)
            self._wake.clear()
            self.since = loop.time()
            try:
                delay = await self.run_once()
                self.since = None
                if self.failures:
                    self.failures, self.trouble = 0, None
                    self.recovered()
            except StoreError as error:
                self.since = None
                self.failures += 1
                self.trouble = str(error)
                self.degraded(error)
                await asyncio.sleep(self._backoff())
                continue
            except Exception as error:
                self.since = None
                self.failures += 1
                self.trouble = f"unexpected {type(error).__name__}"
                log.exception("%s: unexpected error, trying again", self.name)
                await asyncio.sleep(self._backoff())
                continue
            if self._task is own and delay > 0 and not self._wake.is_set():
                await self._sleep(min(delay, self.poll))
            else:
                await asyncio.sleep(0)

    def _backoff(self) -> float:
        """Return the seconds to pause after the present number of failures in a row."""
        return float(min(0.1 * 2 ** min(self.failures, 10), MAX_STORE_BACKOFF_SECONDS))

    async def _sleep(self, seconds: float) -> None:
        """Return after `seconds`, or earlier when `wake` is called."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, asyncio.BaseEventLoop):
            seconds += TIMER_ROUNDING_SECONDS
        timer = loop.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def degraded(self, error: StoreError) -> None:
        """Log the first failure of the store in a row, and every tenth. Called after each failure of the store."""
        if self.failures == 1 or self.failures % 10 == 0:
            log.warning("%s: the store fails (%d times): %s", self.name, self.failures, error)

    def recovered(self) -> None:
        """Log that the store answers again. Called when a piece of work succeeds after failures."""
        log.warning("%s: the store answers again", self.name)
