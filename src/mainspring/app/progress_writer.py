"""Progress writer: stores the newest progress line of each running attempt, at a bounded rate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from mainspring.model.errors import StoreError
from mainspring.ports.executor import HeldRun
from mainspring.ports.store import Store

#: The shortest time between two writes for one attempt. People read the progress, so it need not be more current.
PROGRESS_INTERVAL_SECONDS = 0.5


class ProgressWriter:
    """Writes progress lines of attempts to the store: of the lines of one attempt that wait, only the newest."""

    def __init__(self, open_store: Callable[[], Store | None]) -> None:
        """`open_store` returns the store while it is open. If it returns None, progress lines are dropped."""
        self._open_store = open_store
        self._lines: dict[HeldRun, str] = {}
        self._writing: asyncio.Task[None] | None = None

    def put(self, held: HeldRun, text: str) -> None:
        """Store `text` as the progress line of an attempt soon, unless the attempt ends before. Thread: engine loop."""
        self._lines[held] = text
        loop = asyncio.get_running_loop()
        writing = self._writing
        if writing is None or writing.done() or writing.get_loop() is not loop:  # an ended loop left its task undone
            self._writing = loop.create_task(self._write())

    def cancel(self) -> None:
        """Drop the lines that are not written yet. Thread: engine loop."""
        self._lines.clear()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    async def _write(self) -> None:
        """Write the lines that wait, every `PROGRESS_INTERVAL_SECONDS`, until none wait.

        If the store fails, a line is lost.
        """
        while self._lines:
            for held, text in list(self._lines.items()):
                if self._lines.get(held) == text:
                    del self._lines[held]
                store = self._open_store()
                if store is not None and not held.is_done:
                    with contextlib.suppress(StoreError):
                        await store.progress(held.attempt.run.id, held.attempt.run.epoch, text)
            await asyncio.sleep(PROGRESS_INTERVAL_SECONDS)
