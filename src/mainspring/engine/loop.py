"""The base of the loops of an instance: start, stop, wake, and pause for longer and longer while the store fails."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from mainspring.model.errors import StoreError
from mainspring.model.plural import plural

log = logging.getLogger("mainspring.engine")

#: The longest pause of a loop between two tries while the store fails, in seconds.
MAX_STORE_BACKOFF_SECONDS = 2.0
#: While the store fails, a loop logs that again after this pause, and after twice the pause each further time.
FIRST_REMINDER_SECONDS = 20.0
MAX_REMINDER_SECONDS = 600.0
#: After this time without a failure, the store counts as working even if nothing was written to it since.
CALM_SECONDS = 30.0
#: Added to each sleep on an event loop that is not asyncio's own, such as uvloop. Its timers count whole milliseconds,
#: so half of them end early, and `run_once` would be called in vain until the time has come.
TIMER_ROUNDING_SECONDS = 0.0005


class Loop(ABC):
    """Calls `run_once` repeatedly, until `stop`. Each call does a bounded amount of work and returns how long to wait.

    Thread: engine loop.
    """

    name = "loop"

    def __init__(self, poll: float) -> None:
        """Make a loop that does not run yet. `poll`: the longest wait between two calls of `run_once`, in seconds."""
        self.poll = poll
        #: Number of calls of `run_once` that failed since the store was last known to work.
        self.failures = 0
        #: Error text of the last call of `run_once` that failed; None once the store is known to work.
        self.trouble: str | None = None
        #: When the call of `run_once` that is under way began, in the event loop's time; None between two calls.
        self.since: float | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: When the store failed last, in the event loop's time.
        self._failed_at = 0.0
        #: When to log again that the store fails, in the event loop's time; and the pause after that line, in seconds.
        self._remind_at = 0.0
        self._remind_after = FIRST_REMINDER_SECONDS

    @abstractmethod
    async def run_once(self) -> float:
        """Do a bounded amount of work. Return the seconds until there may be more; the loop waits for at most `poll`.

        Subclasses implement this. It may raise any error: the loop logs the error and calls again after a pause.
        """

    def start(self) -> None:
        """Start the loop in a task of the running event loop. If the loop runs already, do nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._loop(), name=f"mainspring-{self.name}")

    async def stop(self) -> None:
        """Cancel the loop, even while `run_once` is under way, and return when its task has ended.

        If the loop does not run, do nothing. An error that had ended the loop before is logged and not raised.
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
        """Call `run_once` without further waiting, because something changed: at once, or after the call under way.

        A pause after an error is not cut short.
        """
        self._wake.set()

    async def _loop(self) -> None:
        """Call `run_once` until `stop`. After a call, wait as long as it returned; after an error, for `_backoff()`."""
        loop, own = asyncio.get_running_loop(), asyncio.current_task()
        # `stop` also clears `_task`: a store's driver may swallow the cancellation (`wait_for` did before Python 3.12).
        while self._task is own:
            self._wake.clear()
            self.since = loop.time()
            try:
                delay = await self.run_once()
                self.since = None
                if self.failures and (self.is_store_usable() or loop.time() - self._failed_at >= CALM_SECONDS):
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
                await self._sleep(min(delay, self.poll, CALM_SECONDS if self.failures else self.poll))
            else:
                await asyncio.sleep(0)

    def _backoff(self) -> float:
        """Return the seconds to pause after the present number of failures in a row."""
        return float(min(0.1 * 2 ** min(self.failures, 10), MAX_STORE_BACKOFF_SECONDS))

    async def _sleep(self, seconds: float) -> None:
        """Return after `seconds`, or as soon as `wake` is called."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, asyncio.BaseEventLoop):
            seconds += TIMER_ROUNDING_SECONDS
        timer = loop.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def degraded(self, error: StoreError) -> None:
        """Log a failure of the store: the first, and more and more rarely the next. Called after each failure of it."""
        self._failed_at = now = asyncio.get_running_loop().time()
        if self.failures == 1:
            self._remind_after = FIRST_REMINDER_SECONDS
        elif now < self._remind_at:
            return
        else:
            self._remind_after = min(2 * self._remind_after, MAX_REMINDER_SECONDS)
        self._remind_at = now + self._remind_after
        log.warning("%s: the store fails (%s): %s", self.name, plural(self.failures, "time"), error)

    def is_store_usable(self) -> bool:
        """Return True if `run_once`, which succeeded, shows that the failures before are over. Called after failures.

        A subclass returns False if the call may have succeeded only because there was nothing to write.
        """
        return True

    def recovered(self) -> None:
        """Log that the store answers again. Called when failures of the store are over."""
        log.warning("%s: the store answers again", self.name)
