"""The inline writer: commits single new runs to a local file on the caller's own thread (ADR 18).

It is used in a process that only enqueues, where no worker could claim in the same commit. There an enqueue is one
short write, and waking the engine thread and being woken by it costs more than the write. But the caller's event loop
stands still while the disk writes. So a run is written here only if it comes alone; it goes through the engine thread
if it coincides with other runs or with another writer, or if the disk was slow.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from mainspring.engine.commit.submitter import ThreadsafeSubmitter
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.ports.store import Store

T = TypeVar("T")

log = logging.getLogger("mainspring.engine")

#: The first changes, this many, go through the engine thread; the next one opens a connection for callers' threads.
INLINE_AFTER_CHANGES = 20
#: An inline commit that takes longer than this is slow: then a number of changes go through the engine thread.
SLOW_COMMIT_SECONDS = 0.01
#: That number of changes: 5 after the first slow commit, doubled after each further slow commit in a row, up to 10,000.
MIN_DETOUR, MAX_DETOUR = 5, 10_000


class InlineWriter:
    """A `Writer` with one connection that callers' threads use, one thread at a time."""

    def __init__(
        self, open_another: Callable[[], Store], submitter: ThreadsafeSubmitter, stopwatch: Callable[[], float]
    ) -> None:
        """Make a writer without a connection yet. `open_another` makes a further store object for the same file.

        The store object is not yet opened. `submitter` commits through the engine thread. `stopwatch` returns the time
        in seconds, from any origin.
        """
        self._open_another = open_another
        self._submitter = submitter
        self._stopwatch = stopwatch
        self._store: Store | None = None
        self._using, self._counting = threading.Lock(), threading.Lock()
        self._changes = 0
        #: Changes that are under way through the engine thread.
        self._in_engine = 0
        #: Changes still to go through the engine thread before the next one is tried here.
        self._detour = INLINE_AFTER_CHANGES
        self._next_detour = MIN_DETOUR

    async def apply(self, change: Change) -> Result:
        """Commit a change, alone on this thread or together with others on the engine thread, and return its result.

        Raises: StoreError. Thread: any that runs an event loop.
        """
        self._changes += 1
        number = self._changes
        if self._detour > 0:
            self._detour -= 1
        else:
            await asyncio.sleep(0)  # other tasks that have a change to store call `apply` now
            result = self._write(change) if number == self._changes else None
            if result is not None:
                return result
        self._count_in_engine(1)
        try:
            return await self._submitter.apply(change)
        finally:
            self._count_in_engine(-1)

    def apply_blocking(self, change: Change) -> Result:
        """Commit a change on this thread, which runs no event loop, or on the engine thread, and return its result.

        Raises: StoreError.
        """
        self._changes += 1
        if self._detour > 0:
            self._detour -= 1
        elif (result := self._write(change)) is not None:
            return result
        self._count_in_engine(1)
        try:
            return self._submitter.apply_blocking(change)
        finally:
            self._count_in_engine(-1)

    async def close(self) -> None:
        """Wait until no thread uses the connection, and close it if it is open.

        After `INLINE_AFTER_CHANGES` further changes, the next change opens a new one.
        """
        with self._using:
            store, self._store, self._detour = self._store, None, INLINE_AFTER_CHANGES
            if store is not None:
                await store.close()

    def _count_in_engine(self, by: int) -> None:
        """Add `by`, 1 or -1, to the number of changes that are under way through the engine thread.

        It needs a lock: a count lost between two threads would send every later change through the engine thread.
        """
        with self._counting:
            self._in_engine += by

    def _write(self, change: Change) -> Result | None:
        """Commit a change on this thread and return its result. Return None if the engine thread must commit it.

        The engine thread must if changes are under way there, if another thread uses the connection, or if the store
        failed. After a slow commit or an error other than `StoreUnavailable`, the next changes go through the engine
        thread, too.
        """
        if self._in_engine or not self._using.acquire(blocking=False):
            return None
        began = self._stopwatch()
        try:
            store = self._store or _run_without_waiting(self._open())
            result = _run_without_waiting(store.apply([change])).results[0]
        except StoreUnavailable:  # another process writes, or none can: the engine waits, and reports the error
            return None
        except StoreError as error:
            log.info("writes from callers go through the engine for now (slower): %s", error)
            self._detour = MIN_DETOUR
            return None
        finally:
            self._using.release()
        if self._stopwatch() - began <= SLOW_COMMIT_SECONDS:
            self._next_detour = MIN_DETOUR
        else:
            self._detour, self._next_detour = self._next_detour, min(2 * self._next_detour, MAX_DETOUR)
        return result

    async def _open(self) -> Store:
        """Open the connection for callers' threads and return it. Raises: StoreError."""
        store = self._open_another()
        await store.open()
        self._store = store
        return store


def _run_without_waiting(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end, on the calling thread, and return its value.

    The thread may run an event loop or none. Raises: RuntimeError if the coroutine suspends after all.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} suspended, although it must run without waiting")
