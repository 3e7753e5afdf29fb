"""The base of every loop: start, stop, wake, step by hand, and patience with a store that fails."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from mainspring.model.errors import StoreError

log = logging.getLogger("mainspring.engine")

#: A store that is back is noticed within this and the poll interval.
MAX_BACKOFF = 2.0
#: Timers of other loops than asyncio's own count whole milliseconds, so half of them end early: that would be a look
#: in vain, and another, until the time has come.
GRAIN = 0.0005


class Service(ABC):
    """`run_once` does one bounded piece of work and says how long to wait before the next."""

    name = "service"

    def __init__(self, poll: float) -> None:
        self.poll = poll
        self.failures = 0
        #: What the last piece of work failed of.
        self.trouble: str | None = None
        #: When the piece of work under way began, by the loop's time.
        self.since: float | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def run_once(self) -> float:
        """Work; answer the seconds until there may be more (0: at once). Never waited longer than the poll interval."""

    def start(self) -> None:
        """Begin on the running loop; a second call changes nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._loop(), name=f"mainspring-{self.name}")

    async def stop(self) -> None:
        """End between two pieces of work; a second call changes nothing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            except Exception:  # whatever a loop died of must not keep the others from stopping
                log.exception("%s: had ended by an error", self.name)

    def wake(self) -> None:
        """Something changed: look now."""
        self._wake.set()

    async def _loop(self) -> None:
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
                log.exception("%s: unexpected error, going on", self.name)
                await asyncio.sleep(self._backoff())
                continue
            if self._task is own and delay > 0 and not self._wake.is_set():
                await self._sleep(min(delay, self.poll))
            else:
                await asyncio.sleep(0)

    def _backoff(self) -> float:
        return float(min(0.1 * 2 ** min(self.failures, 10), MAX_BACKOFF))

    async def _sleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, asyncio.BaseEventLoop):
            seconds += GRAIN
        timer = loop.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def degraded(self, error: StoreError) -> None:
        """The store failed; said once, then every tenth time."""
        if self.failures == 1 or self.failures % 10 == 0:
            log.warning("%s: the store fails (%d times): %s", self.name, self.failures, error)

    def recovered(self) -> None:
        """The store answers again."""
        log.warning("%s: the store answers again", self.name)
