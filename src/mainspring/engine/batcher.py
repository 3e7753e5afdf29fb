"""Natural batching: while one commit is in flight, whatever arrives waits for the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.events import Event
from mainspring.ports.store import Store

MAX_ROWS = 1_000
MAX_BYTES = 512 * 1024
MAX_WAITING = 10_000


class Batcher:
    """Collects changes on the engine's loop and applies them in few commits, in order of arrival."""

    def __init__(
        self, store: Store, committed: Callable[[Sequence[Change]], None], publish: Callable[[Event], None]
    ) -> None:
        self._store = store
        self._committed = committed
        self._publish = publish
        self._queue: deque[tuple[Change, asyncio.Future[Result], int, int]] = deque()
        self._flusher: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self.listening = False

    @property
    def waiting(self) -> int:
        """Changes not yet committed."""
        return len(self._queue)

    async def apply(self, change: Change) -> Result:
        """Commit a change with its neighbours; waits while the queue is full."""
        while len(self._queue) >= MAX_WAITING:
            self._room.clear()
            await self._room.wait()
        return await self.submit(change)

    def submit(self, change: Change) -> asyncio.Future[Result]:
        """Queue a change without waiting for room; for outcomes, which must never be held up."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        rows = 1 + len(change.runs) + len(change.spans) + len(change.events)
        size = 200 * rows + sum(len(body.data) for body in change.bodies)
        if change.run is not None and change.run.result is not None:
            size += 2 * len(change.run.result)
        self._queue.append((change, future, rows, size))
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._flush())
        return future

    async def flush(self) -> None:
        """Return when everything queued so far is committed."""
        while self._flusher is not None:
            await asyncio.shield(self._flusher)

    async def _flush(self) -> None:
        try:
            while self._queue:
                await self._commit(self._take())
                if len(self._queue) < MAX_WAITING:
                    self._room.set()
        finally:
            self._flusher = None

    def _take(self) -> list[tuple[Change, asyncio.Future[Result]]]:
        """As many changes as fit one commit, at most one for each guarded row; the second goes to the next."""
        batch: list[tuple[Change, asyncio.Future[Result]]] = []
        guarded: set[str] = set()
        rows = size = 0
        while self._queue:
            change, future, its_rows, its_size = self._queue[0]
            key = getattr(change.guard, "id", None)
            if batch and (key in guarded or rows + its_rows > MAX_ROWS or size + its_size > MAX_BYTES):
                break
            self._queue.popleft()
            if future.cancelled():
                continue
            if key is not None:
                guarded.add(key)
            rows, size = rows + its_rows, size + its_size
            batch.append((change, future))
        return batch

    async def _commit(self, batch: list[tuple[Change, asyncio.Future[Result]]]) -> None:
        if not batch:
            return
        try:
            applied = await self._store.apply([change for change, _ in batch])
        except StoreUnavailable as error:
            for _, future in batch:
                _fail(future, error)
            return
        except Exception as error:
            # One poison change must not fail its neighbours: bisect until it stands alone.
            if len(batch) == 1:
                _fail(batch[0][1], error if isinstance(error, StoreError) else StoreError(f"apply failed: {error!r}"))
                return
            middle = len(batch) // 2
            await self._commit(batch[:middle])
            await self._commit(batch[middle:])
            return
        accepted: list[Change] = []
        for (change, future), result in zip(batch, applied.results, strict=True):
            if result.status == "accepted":
                accepted.append(change)
            if not future.done():
                future.set_result(result)
        if accepted:
            self._committed(accepted)
            if self.listening:
                for change in accepted:
                    for event in change.events:
                        self._publish(replace(event, at=applied.now, change=change.id))


def _fail(future: asyncio.Future[Result], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
