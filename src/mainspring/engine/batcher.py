"""Natural batching: while one commit is in flight, whatever arrives waits for the next."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.events import Event
from mainspring.ports.store import Applied, Claimed, Store, Wish

MAX_ROWS = 1_000
MAX_BYTES = 512 * 1024
MAX_WAITING = 10_000
#: A commit of nothing but what nobody waits for begins `pace` after the last one, or when so many changes are there:
#: at a thousand outcomes a second, a commit for every second of them would keep the store busy for nothing.
ENOUGH = 50


#: Hears what became of a change, or why the store could not say.
Answer = Callable[[Result | StoreError], None]


class Haste(IntEnum):
    """How long a change may wait for company when there is nothing else to commit."""

    #: Somebody waits for it.
    NOW = 0
    #: Nobody does: a `pace` after the last commit.
    SOON = 1
    #: Nor does anything wait behind it: `CROWDED` paces while the worker has enough to do.
    EASY = 2
    #: One of many, each at its own moment: `LINGER` seconds.
    LATER = 3


#: What is lost with a crash is done again, so this is how much of it.
LINGER = 0.45
#: Seconds that no timer is exact to: waiting for less may end before it began.
GRAIN = 0.0005
#: In paces. While runs wait in its queue, a worker gains nothing by a commit, and quick handlers lose the CPU that it
#: takes; when a slot stays free, the outcomes go along with the claim that fills the queue again.
CROWDED = 20


class _Waiting(Struct, gc=False):
    change: Change
    answer: asyncio.Future[Result] | Answer
    rows: int
    size: int
    haste: Haste
    since: float = 0.0


class Rider(Protocol):
    """Who may claim in the commit that is about to be made."""

    def wish(self, changes: Sequence[Change]) -> Wish | None:
        """A claim for this commit; each is answered by `granted`."""
        ...

    def granted(self, claimed: Claimed | None) -> None:
        """What came of it; None when the commit failed, or nobody knows."""
        ...


class Batcher:
    """Collects changes on the engine's loop and applies them in few commits, in order of arrival."""

    def __init__(
        self,
        store: Store,
        committed: Callable[[Sequence[Change], Applied], None],
        publish: Callable[[Event], None],
        pace: float = 0.0,
    ) -> None:
        self._store = store
        self._committed = committed
        self._publish = publish
        self._queue: deque[_Waiting] = deque()
        self._flusher: asyncio.Task[None] | None = None
        self._here = False
        self._pace = pace
        self._began = float("-inf")
        self._hastes = [0] * len(Haste)
        self._patient = False
        self._flushing = 0
        self._hurry = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self.listening = False
        #: The worker's claim that may ride along, if it wants one; and where to tell what came of it.
        self.rider: Rider | None = None
        #: Whether the worker has enough to do, and nobody waits here for the end of a run.
        self.crowded: Callable[[], bool] = lambda: False

    @property
    def waiting(self) -> int:
        """Changes not yet committed."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """True when callers have to wait."""
        return len(self._queue) >= MAX_WAITING

    async def apply(self, change: Change) -> Result:
        """Commit a change with its neighbours; waits while the queue is full."""
        while self.full:
            self._room.clear()
            await self._room.wait()
        return await self.submit(change)

    async def apply_here(self, change: Change) -> Result:
        """The same; when nothing is in flight it is committed right here, without a task. Who gives up, ends it."""
        if self._flusher is not None or self._here or self._queue:
            return await self.apply(change)
        self._here = True
        try:
            return await self.apply_beside(change)
        finally:
            self._here = False
            if self._queue:
                self._flusher = asyncio.get_running_loop().create_task(self._flush())

    async def apply_beside(self, change: Change) -> Result:
        """Commit a large change beside what is in flight: one is stored while the next is made."""
        told: list[Result | StoreError] = []
        await self._commit([_Waiting(change, told.append, 1, 0, Haste.NOW)])
        if isinstance(told[0], StoreError):
            raise told[0]
        return told[0]

    async def apply_many(self, changes: Sequence[Change]) -> list[Result]:
        """The same for many small ones in one commit; the first failure is raised when all are told."""
        told: list[Result | StoreError] = []
        await self._commit([_Waiting(change, told.append, 1, 0, Haste.NOW) for change in changes])
        return _results(told)

    async def submit_all(self, changes: Sequence[Change]) -> list[Result]:
        """Queue some without waiting for room, and wait for all; the first failure is raised when all are told."""
        told: list[Result | StoreError] = []
        done = asyncio.get_running_loop().create_future()

        def answer(result: Result | StoreError) -> None:
            told.append(result)
            if len(told) == len(changes) and not done.done():
                done.set_result(None)

        for change in changes:
            self.post(change, answer)
        await done
        return _results(told)

    def submit(self, change: Change) -> asyncio.Future[Result]:
        """Queue a change without waiting for room."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.post(change, future)
        return future

    def post(
        self,
        change: Change,
        answer: asyncio.Future[Result] | Answer,
        haste: Haste = Haste.NOW,
        waited: float = 0.0,
    ) -> None:
        """The same with a plain call for an answer. It may have waited for so many seconds already."""
        rows = 1 + len(change.runs) + len(change.spans) + len(change.events)
        size = 200 * rows
        for body in change.bodies:
            size += len(body.data)
        if change.run is not None and change.run.result is not None:
            size += 2 * len(change.run.result)
        since = asyncio.get_running_loop().time() - waited if haste is Haste.LATER else 0.0
        self._queue.append(_Waiting(change, answer, rows, size, haste, since))
        self._hastes[haste] += 1
        if len(self._queue) >= ENOUGH or self._sooner(haste):
            self._hurry.set()
        if self._flusher is None and not self._here:
            self._flusher = asyncio.get_running_loop().create_task(self._flush())

    async def flush(self) -> None:
        """Return when everything queued so far is committed."""
        self._flushing += 1
        try:
            while self._flusher is not None:
                self._hurry.set()
                await asyncio.shield(self._flusher)
        finally:
            self._flushing -= 1

    async def _flush(self) -> None:
        try:
            while self._queue:
                await self._wait_for_company()
                await self._commit(self._take())
                if len(self._queue) < MAX_WAITING:
                    self._room.set()
        finally:
            self._flusher = None

    def _sooner(self, haste: Haste) -> bool:
        """True when a change that just came cuts the wait for company short."""
        if haste is Haste.EASY and self._hastes[haste] > 1:
            return self._patient and not self.crowded()
        return haste is Haste.NOW or (haste is not Haste.LATER and self._hastes[haste] == 1)

    def _until(self) -> float:
        """How long to wait for company, in the loop's time."""
        self._patient = False
        if self._hastes[Haste.SOON]:
            return self._began + self._pace
        if self._hastes[Haste.EASY]:
            self._patient = self.crowded()
            return self._began + self._pace * (CROWDED if self._patient else 1)
        return self._queue[0].since + LINGER

    async def _wait_for_company(self) -> None:
        """Wait for company as long as nobody is in a hurry."""
        loop = asyncio.get_running_loop()
        while not (self._hastes[Haste.NOW] or self._flushing) and len(self._queue) < ENOUGH:
            wait = self._until() - loop.time()
            if wait <= GRAIN:
                break
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._hurry.wait()
        self._began = loop.time()

    def _take(self) -> list[_Waiting]:
        """As many changes as fit one commit, at most one for each guarded row; the second goes to the next."""
        batch: list[_Waiting] = []
        guarded: set[str] = set()
        rows = size = 0
        while self._queue:
            waiting = self._queue[0]
            guard = waiting.change.guard
            key = None if guard is None else guard.id
            if batch and (key in guarded or rows + waiting.rows > MAX_ROWS or size + waiting.size > MAX_BYTES):
                break
            self._queue.popleft()
            self._hastes[waiting.haste] -= 1
            if isinstance(waiting.answer, asyncio.Future) and waiting.answer.cancelled():
                continue
            if key is not None:
                guarded.add(key)
            rows, size = rows + waiting.rows, size + waiting.size
            batch.append(waiting)
        return batch

    async def _commit(self, batch: list[_Waiting]) -> None:
        if not batch:
            return
        changes = [waiting.change for waiting in batch]
        rider = self.rider
        wish = None if rider is None else rider.wish(changes)
        claimed: Claimed | None = None
        try:
            applied = await self._store.apply(changes, wish=wish)
            claimed = applied.claimed
        except StoreUnavailable as error:
            for waiting in batch:
                _tell(waiting, error)
            return
        except Exception as error:
            # One poison change must not fail its neighbours: bisect until it stands alone.
            if len(batch) == 1:
                _tell(batch[0], error if isinstance(error, StoreError) else StoreError(f"apply failed: {error!r}"))
                return
            middle = len(batch) // 2
            await self._commit(batch[:middle])
            await self._commit(batch[middle:])
            return
        finally:
            if rider is not None and wish is not None and claimed is None:
                rider.granted(None)
        accepted: list[Change] = []
        for waiting, result in zip(batch, applied.results, strict=True):
            if result.status == "accepted":
                accepted.append(waiting.change)
            _tell(waiting, result)
        if accepted:
            self._committed(accepted, applied)
            if self.listening:
                for change in accepted:
                    for event in change.events:
                        self._publish(replace(event, at=applied.now, change=change.id))
        if rider is not None and claimed is not None:
            rider.granted(claimed)


def _results(told: Sequence[Result | StoreError]) -> list[Result]:
    results: list[Result] = []
    for result in told:
        if isinstance(result, StoreError):
            raise result
        results.append(result)
    return results


def _tell(waiting: _Waiting, result: Result | StoreError) -> None:
    answer = waiting.answer
    if not isinstance(answer, asyncio.Future):
        answer(result)
    elif not answer.done():
        if isinstance(result, StoreError):
            answer.set_exception(result)
        else:
            answer.set_result(result)
