"""New runs committed on the caller's own thread, when the engine of this process has nothing to add.

A process that only enqueues has no worker that could claim in the same commit. Then an enqueue on a local file is one
short write, and waking another thread for it and being woken again costs more than the write itself. The caller's loop
stands still for as long as the disk takes: so a single run is written here, while whatever meets others, meets somebody
else's write or finds the disk slow goes to the engine's thread, as everywhere.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from mainspring.engine.crossing import Crossing
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.ports.store import Store

T = TypeVar("T")

log = logging.getLogger("mainspring.engine")

#: So many new runs are worth a connection of their own.
OFTEN = 20
#: No loop should stand still for so many seconds: a disk that took longer gets the next runs by the other way, twice as
#: many each time it did, up to `MOST`.
SLOW = 0.01
PATIENCE, MOST = 5, 10_000


class Inline:
    """A connection for the callers' threads, used by one of them at a time."""

    def __init__(self, another: Callable[[], Store], crossing: Crossing, stopwatch: Callable[[], float]) -> None:
        self._another = another
        self._crossing = crossing
        self._stopwatch = stopwatch
        self._store: Store | None = None
        self._using, self._counting = threading.Lock(), threading.Lock()
        self._asked = 0
        self._elsewhere = 0
        self._wait = OFTEN
        self._patience = PATIENCE

    async def apply(self, change: Change) -> Result:
        """Commit a change, alone on this thread or with its neighbours on the engine's."""
        self._asked += 1
        mine = self._asked
        if self._wait > 0:
            self._wait -= 1
        else:
            await asyncio.sleep(0)  # who else has something to store now, says so now
            result = self._write(change) if mine == self._asked else None
            if result is not None:
                return result
        self._went(1)
        try:
            return await self._crossing.apply(change)
        finally:
            self._went(-1)

    def apply_blocking(self, change: Change) -> Result:
        """The same for a thread without a loop."""
        self._asked += 1
        if self._wait > 0:
            self._wait -= 1
        elif (result := self._write(change)) is not None:
            return result
        self._went(1)
        try:
            return self._crossing.apply_blocking(change)
        finally:
            self._went(-1)

    async def close(self) -> None:
        """Let go of the file; the next run that comes often enough opens it again."""
        with self._using:
            store, self._store, self._wait = self._store, None, OFTEN
            if store is not None:
                await store.close()

    def _went(self, by: int) -> None:
        """Count who is under way elsewhere; one that got lost between threads would close the short way for ever."""
        with self._counting:
            self._elsewhere += by

    def _write(self, change: Change) -> Result | None:
        """None when it has to go the other way; nothing was written then."""
        if self._elsewhere or not self._using.acquire(blocking=False):
            return None
        began = self._stopwatch()
        try:
            store = self._store or _ended(self._open())
            result = _ended(store.apply([change])).results[0]
        except StoreUnavailable:  # somebody else writes, or nobody can: the other way waits, and tells
            return None
        except StoreError as error:
            log.info("no short way to the store: %s", error)
            self._wait = PATIENCE
            return None
        finally:
            self._using.release()
        if self._stopwatch() - began <= SLOW:
            self._patience = PATIENCE
        else:
            self._wait, self._patience = self._patience, min(2 * self._patience, MOST)
        return result

    async def _open(self) -> Store:
        store = self._another()
        await store.open()
        self._store = store
        return store


def _ended(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} waits")
