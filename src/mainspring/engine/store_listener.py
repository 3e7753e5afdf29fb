"""The store listener: receives the store's hints that another process changed something, and wakes the loops here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.engine.loop import Loop
from mainspring.ports.store import Store

#: Seconds for which hints are collected after the first, so that together they cause one more wake-up.
DEBOUNCE_SECONDS = 0.005
#: The wait for a hint in one call to the store, in seconds; the poll interval, if that is longer.
MAX_WAIT_SECONDS = 60.0


class StoreListener(Loop):
    """Waits for hints. They only save latency: every loop polls as well."""

    name = "watcher"

    def __init__(self, store: Store, poll: float, on_hint: Callable[[], None]) -> None:
        """`on_hint` wakes the loops of this instance."""
        super().__init__(poll)
        self._store = store
        self._on_hint = on_hint

    async def run_once(self) -> float:
        """Wait for a hint, and wake the loops if one came. Return 0: wait for the next hint at once."""
        if await self._store.wait(max(MAX_WAIT_SECONDS, self.poll)):
            self._on_hint()
            await asyncio.sleep(DEBOUNCE_SECONDS)
            self._on_hint()  # for hints that came meanwhile: none was waited for
        return 0.0
