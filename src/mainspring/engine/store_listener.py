"""The store listener: waits for the store's hints that another process changed something, and wakes the loops here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.engine.loop import Loop
from mainspring.ports.store import Store

#: Seconds for which further hints are collected after a hint, so that all of them cause only one more wake-up.
DEBOUNCE_SECONDS = 0.005
#: The longest wait for a hint in one call to the store, in seconds; the poll interval, if that is longer.
MAX_WAIT_SECONDS = 60.0


class StoreListener(Loop):
    """Waits for the store's hints. A lost hint costs only latency, because every loop polls as well."""

    name = "store-listener"

    def __init__(self, store: Store, poll: float, on_hint: Callable[[], None]) -> None:
        """Wait for hints of `store`, and call `on_hint`, which wakes the loops of this instance.

        `poll`: the poll interval in seconds.
        """
        super().__init__(poll)
        self._store = store
        self._on_hint = on_hint

    async def run_once(self) -> float:
        """Wait for a hint, and wake the loops if one came. Return 0: the loop waits for the next hint at once."""
        if await self._store.wait(max(MAX_WAIT_SECONDS, self.poll)):
            self._on_hint()
            await asyncio.sleep(DEBOUNCE_SECONDS)
            self._on_hint()  # hints may have come meanwhile, when the store was not asked for them
        return 0.0
