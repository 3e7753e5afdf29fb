"""The broker as the engine sees it: who cannot use it, and why. Said once when it goes, once when it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mainspring.model.errors import BrokerError

log = logging.getLogger("mainspring.engine")

#: A broker that is back is noticed within this, in seconds.
MAX_BACKOFF = 1.0
#: Seconds until a task that does not end is told again.
AGAIN = 0.2


class Line:
    """Shared by everybody who talks to the broker."""

    def __init__(self) -> None:
        self._failing: dict[str, str] = {}

    @property
    def trouble(self) -> str | None:
        """Why the broker cannot be used; None while it can."""
        return next(iter(self._failing.values()), None)

    def failed(self, who: str, error: Exception) -> None:
        """Somebody could not use it."""
        if not self._failing:
            log.warning("the broker fails, runs go on by the store alone: %s", error)
        self._failing[who] = str(error)

    def works(self, who: str) -> None:
        """Somebody could."""
        if self._failing and self._failing.pop(who, None) is not None and not self._failing:
            log.warning("the broker answers again")

    async def keep(self, who: str, work: Callable[[], Awaitable[bool]]) -> None:
        """Do it again and again until it answers False; with patience while the broker fails."""
        failures = 0
        while True:
            try:
                if not await work():
                    self.works(who)
                    return
                failures = 0
                self.works(who)
            except BrokerError as error:
                failures += 1
                self.failed(who, error)
                await asyncio.sleep(min(0.05 * 2 ** min(failures, 10), MAX_BACKOFF))
            except Exception as error:
                failures += 1
                if failures == 1:
                    log.exception("%s: unexpected error, going on", who)
                self.failed(who, error)
                await asyncio.sleep(MAX_BACKOFF)


async def end(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks until they end: Python 3.11's `wait_for`, by which redis-py sends, may swallow a cancellation."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN)
    await asyncio.gather(*tasks, return_exceptions=True)
