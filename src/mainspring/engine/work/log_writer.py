"""Log writer: stores the lines that handlers write about their runs, in one batch twice a second at most."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable

from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.ids import storable_text
from mainspring.model.run_log import MAX_RUN_LOG_BYTES, LogEntry
from mainspring.ports.clock import Clock
from mainspring.ports.executor import HeldRun
from mainspring.ports.store import Store

log = logging.getLogger("mainspring.engine")

#: Seconds between two batches. A line is stored after this time, so it survives a crash of the process a second later.
FLUSH_SECONDS = 0.5
#: The most bytes of lines in one transaction.
MAX_BATCH_BYTES = 512 * 1024
#: The most bytes of lines that wait for the store; further lines are dropped.
MAX_WAITING_BYTES = 8 * 1024 * 1024
#: The most characters of one line that are stored.
MAX_LINE_CHARS = 16_384


class LogWriter:
    """Collects lines on any thread, and appends them to the logs of their runs on the engine loop.

    Why not with the outcome: lines must be readable while the run is under way, and the commit of the outcome must not
    become slower. A process whose handlers write no lines never calls the store here.
    """

    def __init__(
        self, store: Store, clock: Clock, limit: int | None, post: Callable[[Callable[[], None]], None]
    ) -> None:
        """Write to `store`. `clock`: store time. `post(function)` schedules `function()` on the engine loop.

        `limit`: the most bytes of all logs; None: the store's default; 0: store no lines.
        """
        self._store = store
        self._clock = clock
        self._limit = limit
        self._post = post
        self._lock = threading.Lock()
        self._waiting: list[LogEntry] = []
        self._waiting_bytes = 0
        #: Run id → bytes of its lines that wait.
        self._bytes_of_run: Counter[str] = Counter()
        self._writing: asyncio.Task[None] | None = None
        #: Held while a batch is written, so that `flush` returns after lines that were taken before it.
        self._flushing: asyncio.Lock | None = None

    def put(self, held: HeldRun, level: str, source: str, text: str) -> None:
        """Store a line of an attempt soon. `level`, `source` and `text` are those of `LogEntry`. Thread: any."""
        if self._limit == 0:
            return
        run = held.attempt.run
        if len(text) > MAX_LINE_CHARS:
            text = f"{text[:MAX_LINE_CHARS]}… {len(text) - MAX_LINE_CHARS} characters left out"
        entry = LogEntry(
            run_id=run.id,
            attempt=run.attempt,
            at=self._clock.now(),
            level=level,
            source=storable_text(source),
            text=storable_text(text),
        )
        with self._lock:
            # More than a whole log of one run would be cut by the store anyway.
            if self._bytes_of_run[run.id] > MAX_RUN_LOG_BYTES or self._waiting_bytes > MAX_WAITING_BYTES:
                return
            is_first = not self._waiting
            self._waiting.append(entry)
            self._waiting_bytes += entry.size
            self._bytes_of_run[run.id] += entry.size
        if is_first:
            self._post(self._begin)

    def _begin(self) -> None:
        """Start the task that writes, unless it runs. Thread: engine loop."""
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        """Write the lines that wait, every `FLUSH_SECONDS`, until none wait."""
        while self._waiting:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write the lines that wait now, and return when they are stored or given up. Thread: engine loop.

        While the store is unavailable, lines wait; if it refuses them, they are dropped, and that is logged.
        """
        if self._flushing is None:
            self._flushing = asyncio.Lock()
        async with self._flushing:
            with self._lock:
                entries, self._waiting = self._waiting, []
                self._waiting_bytes = 0
                self._bytes_of_run.clear()
            limit = self._store.capabilities.logs_limit if self._limit is None else self._limit
            at = 0
            while at < len(entries):
                end, size = at, 0
                while end < len(entries) and size < MAX_BATCH_BYTES:
                    size += entries[end].size
                    end += 1
                try:
                    await self._store.append_log(entries[at:end], limit)
                except StoreUnavailable:
                    self._put_back(entries[at:])
                    return
                except StoreError as error:
                    log.warning("%d lines of run logs are lost: the store refused them: %s", end - at, error)
                at = end

    def _put_back(self, entries: list[LogEntry]) -> None:
        """Let lines wait again, before those that came meanwhile."""
        with self._lock:
            self._waiting[:0] = entries
            for entry in entries:
                self._waiting_bytes += entry.size
                self._bytes_of_run[entry.run_id] += entry.size

    async def close(self) -> None:
        """Write the lines that wait, and end the task. Called when the engine stops. Thread: engine loop."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
            self._writing = None
        await self.flush()
