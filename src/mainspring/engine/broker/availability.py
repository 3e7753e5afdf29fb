"""Availability of the broker: which uses of the broker fail, and why. An outage is logged once, and so is its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mainspring.model.errors import BrokerError

log = logging.getLogger("mainspring.engine")

#: The longest pause between two tries to use a broker that fails, in seconds. Also the pause after unexpected errors.
MAX_BROKER_BACKOFF_SECONDS = 1.0
#: A task that does not end is cancelled again after this many seconds.
RECANCEL_SECONDS = 0.2


class BrokerAvailability:
    """Collects the failures of every task that uses the broker. A use is a short text, such as "reading events"."""

    def __init__(self) -> None:
        #: The error text of each use that fails now.
        self._failing: dict[str, str] = {}

    @property
    def trouble(self) -> str | None:
        """Error text of a use that fails now; None while every use works."""
        return next(iter(self._failing.values()), None)

    def report_failure(self, use: str, error: Exception) -> None:
        """Record that a use of the broker fails with `error`. Log it if every use worked before."""
        if not self._failing:
            log.warning("the broker fails, runs go on by the store alone: %s", error)
        self._failing[use] = str(error)

    def report_success(self, use: str) -> None:
        """Record that a use of the broker works. Log it if this was the last use that failed."""
        if self._failing and self._failing.pop(use, None) is not None and not self._failing:
            log.warning("the broker answers again")

    async def repeat(self, use: str, work: Callable[[], Awaitable[bool]]) -> None:
        """Call `work` until it returns False. After an error, pause and call it again.

        The pause after a `BrokerError` grows with each error in a row, up to `MAX_BROKER_BACKOFF_SECONDS`, one second.
        After any other error it is one second.

        Each success and failure is reported under `use`, a short text such as "reading events".
        """
        failures = 0
        while True:
            try:
                if not await work():
                    self.report_success(use)
                    return
                failures = 0
                self.report_success(use)
            except BrokerError as error:
                failures += 1
                self.report_failure(use, error)
                await asyncio.sleep(min(0.05 * 2 ** min(failures, 10), MAX_BROKER_BACKOFF_SECONDS))
            except Exception as error:
                failures += 1
                if failures == 1:
                    log.exception("%s: unexpected error, trying again", use)
                self.report_failure(use, error)
                await asyncio.sleep(MAX_BROKER_BACKOFF_SECONDS)


async def cancel_and_wait(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks, repeatedly until all of them have ended. Their errors are ignored.

    Why repeatedly: Python 3.11's `wait_for`, with which redis-py sends, may swallow a cancellation.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=RECANCEL_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
