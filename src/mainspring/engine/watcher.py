"""The watcher: hears that another process changed something and wakes the loops here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.engine.service import Service
from mainspring.ports.store import Store

#: Hints that come together are one wake-up, in seconds.
QUIET = 0.005
PATIENCE = 60.0


class Watcher(Service):
    """Hints only save latency: every loop polls as well."""

    name = "watcher"

    def __init__(self, store: Store, poll: float, wake_all: Callable[[], None]) -> None:
        super().__init__(poll)
        self._store = store
        self._wake_all = wake_all

    async def run_once(self) -> float:
        """Wait for a hint, then pass it on; without one there is nothing to do, the other loops poll by themselves."""
        if await self._store.wait(max(PATIENCE, self.poll)):
            self._wake_all()
            await asyncio.sleep(QUIET)
            self._wake_all()  # what was hinted meanwhile had no listener
        return 0.0
