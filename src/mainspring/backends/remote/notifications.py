"""Notifications of a remote store: which changes other instances are notified of, and how often.

A notification only saves latency. Every loop polls as well, so a lost notification costs nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from mainspring.model.change import Change
from mainspring.model.run import CLAIMABLE

#: Seconds between two notifications of one store object. Why: with a notification in or after each commit, the store
#: makes a fifth fewer writes per second.
_GAP_SECONDS = 0.025


def needs_notification(change: Change) -> bool:
    """Return True if the change may give another instance something to do: to plan, claim, unpark or cancel."""
    run = change.run
    return bool(
        change.runs
        or change.touches
        or change.releases
        or change.schedule is not None
        or (run is not None and (run.state in CLAIMABLE or run.cancel is not None))
    )


class NotificationDebounce:
    """Turns requests to notify into calls of `send`, at most one in 25 ms.

    A request is sent at once if nothing was sent in the last 25 ms. All requests of the next 25 ms share one call.
    """

    def __init__(self, send: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._task: asyncio.Task[None] | None = None
        self._requested_again = False
        self._closing = asyncio.Event()

    def request(self) -> None:
        """Request a notification. It is sent at once or, after a recent one, when 25 ms have passed since that one."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        else:
            self._requested_again = True

    async def close(self, grace_seconds: float) -> None:
        """Wait up to `grace_seconds` until requested notifications are sent, then stop sending. With 0, stop at once.

        A later `request` starts the sending again.
        """
        task = self._task
        if task is not None and grace_seconds:
            self._closing.set()
            await asyncio.wait({task}, timeout=grace_seconds)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._task, self._closing = None, asyncio.Event()

    async def _run(self) -> None:
        """Send a notification and wait 25 ms; repeat both as long as `request` was called meanwhile.

        Once `close` is called with a grace time, there is no wait any more.
        """
        try:
            while True:
                self._requested_again = False
                await self._send()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GAP_SECONDS):
                        await self._closing.wait()
                if not self._requested_again:
                    return
        finally:
            self._task = None
