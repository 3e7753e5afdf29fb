"""Progress writer: stores the newest progress line of each running attempt, at a bounded rate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from mainspring.model.errors import StoreError
from mainspring.ports.executor import HeldRun
from mainspring.ports.store import Store

#: Progress is read by people: at least this time lies between two writes for one attempt.
PROGRESS_INTERVAL_SECONDS = 0.5


class ProgressWriter:
    """Writes progress lines to the store; lines that are replaced within the interval are never written."""

    def __init__(self, open_store: Callable[[], Store | None]) -> None:
        """`open_store` returns the store while it is open, else None: then lines are dropped."""
        self._open_store = open_store
        self._lines: dict[HeldRun, str] = {}
        self._writing: asyncio.Task[None] | None = None

    def put(self, held: HeldRun, text: str) -> None:
        """Store `text` as the progress line of an attempt soon, unless the attempt ends before. Thread: engine loop."""
        idle = not self._lines
        self._lines[held] = text
        if idle:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    def cancel(self) -> None:
        """Drop the lines that are not written yet. Thread: engine loop."""
        self._lines.clear()
        if self._writing is not None:
            self._writing.cancel()

    async def _write(self) -> None:
        """Write the queued lines, each interval, until there are none. If the store fails, a line is lost."""
        while self._lines:
            for held, text in list(self._lines.items()):
                if self._lines.get(held) == text:
                    del self._lines[held]
                store = self._open_store()
                if store is not None and not held.is_done:
                    with contextlib.suppress(StoreError):
                        await store.progress(held.attempt.run.id, held.attempt.run.epoch, text)
            await asyncio.sleep(PROGRESS_INTERVAL_SECONDS)
