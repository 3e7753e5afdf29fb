"""The batcher: commits changes in batches. Changes that arrive while a commit is under way share the next commit.

A pace is the flush interval: the least number of seconds between two commits while no caller waits for a change. A
change without a waiting caller lingers, to share its commit with others; its `Urgency` says how long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engine.commit.shared_claims import SharedClaims
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.events import Event
from mainspring.ports.store import Applied, Store

#: The most rows and bytes of a batch that is taken from the queue; a single change may be larger.
MAX_BATCH_ROWS = 1_000
MAX_BATCH_BYTES = 512 * 1024
#: While this many changes are queued, callers of `apply` wait for room.
MAX_QUEUED_CHANGES = 10_000
#: As soon as this many changes are queued, none of them lingers any more. Why changes linger: at 1,000 outcomes per
#: second, one commit for every two of them would keep the store busy for nothing.
FLUSH_AT_CHANGES = 50


#: A function that receives the result of a change, or the error because of which there is none or it is unknown.
Answer = Callable[[Result | StoreError], None]


class Urgency(IntEnum):
    """How long a change may linger in the queue, unless a more urgent change brings the commit forward."""

    #: A caller waits for the change: commit at once.
    WAITED_FOR = 0
    #: No caller waits: commit one pace after the last commit.
    NEXT_PACE = 1
    #: No caller, run or schedule waits: commit one pace after the last commit. While every slot is taken, commit
    #: `BUSY_LINGER_PACES` paces after the last commit.
    WHEN_IDLE = 2
    #: The success of a run that was claimed ahead of its time; many such runs end one by one. Commit after
    #: `LINGER_SECONDS`.
    LINGER = 3


#: A crash of the process loses at most this many seconds of lingering successes; their runs are executed again.
LINGER_SECONDS = 0.45
#: No timer is exact to this many seconds, so a change that would linger for less does not linger.
MIN_LINGER_SECONDS = 0.0005
#: Successes of the urgency `WHEN_IDLE` linger for up to this many paces while every slot is taken. To commit them
#: earlier would free nothing and cost the handlers CPU. Once a slot is free they are committed with the next claim.
BUSY_LINGER_PACES = 20


class _Waiting(Struct, gc=False):
    """A change in the queue, with the future or function that receives its result."""

    change: Change
    answer: asyncio.Future[Result] | Answer
    rows: int
    #: Approximate size in bytes.
    size: int
    urgency: Urgency
    #: When a change of the urgency `LINGER` began to linger, in the event loop's time; 0 for other changes.
    since: float = 0.0


class EventSink(Protocol):
    """Publishes the events of committed changes to subscribers."""

    @property
    def has_listeners(self) -> bool:
        """True if published events may reach a subscriber or reader; if False, `publish` need not be called."""
        ...

    def publish(self, event: Event) -> None:
        """Publish one committed event without blocking."""
        ...


class Batcher:
    """Collects changes and commits them in batches, in order of arrival. Thread: the event loop that made it."""

    def __init__(
        self,
        store: Store,
        *,
        pace: float = 0.0,
        claims: SharedClaims | None = None,
        publisher: EventSink | None = None,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Commit to `store`. While no caller waits and few changes are queued, commit at most once per `pace` seconds.

        `claims`: the workers whose claims may share a commit. `publisher` receives the events of accepted changes.
        `is_busy` returns True while handlers take every slot and no caller waits for the end of a run, so that
        successes of the urgency `WHEN_IDLE` may linger for longer.
        """
        self._store = store
        self._claims = claims or SharedClaims()
        self._publisher = publisher
        self._after_commit: Callable[[Sequence[Change], Applied], None] | None = None
        self._is_busy = is_busy
        self._queue: deque[_Waiting] = deque()
        self._flusher: asyncio.Task[None] | None = None
        #: True if the store refused the last commit as a whole, for example because the disk is full.
        self.is_failing = False
        #: True while `apply_here` commits in the task of its caller.
        self._is_committing_here = False
        self._pace = pace
        self._last_commit_at = float("-inf")
        #: Number of queued changes of each urgency.
        self._queued_with = [0] * len(Urgency)
        #: True if the present linger is a long one, because every slot was taken when it began.
        self._is_lingering_busy = False
        #: Number of callers in `flush`.
        self._flushing = 0
        #: Set when a change was queued that may end or shorten the present linger.
        self._hurry = asyncio.Event()
        #: Set while the queue has room for changes of `apply`.
        self._room = asyncio.Event()
        self._room.set()

    def call_after_commit(self, callback: Callable[[Sequence[Change], Applied], None]) -> None:
        """From now on, call `callback` after each commit, with the accepted changes and the store's whole answer.

        It is not called for a commit in which no change was accepted. A later callback replaces it.
        """
        self._after_commit = callback

    @property
    def waiting(self) -> int:
        """Number of queued changes, without the changes of a commit that is under way."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """True while the queue is full, so that callers of `apply` have to wait for room."""
        return len(self._queue) >= MAX_QUEUED_CHANGES

    async def apply(self, change: Change) -> Result:
        """Commit a change together with others and return its result. While the queue is full, wait for room first.

        Raises: StoreError if the change could not be committed, or if the result is unknown.
        """
        while self.full:
            self._room.clear()
            await self._room.wait()
        return await self.submit(change)

    async def apply_here(self, change: Change) -> Result:
        """Commit a change in the caller's own task and return its result, which saves a task.

        If changes are queued, or a commit is under way in the queue's task or in another call of this method, do what
        `apply` does instead. If the caller is cancelled, its own commit is cancelled, too. Raises: StoreError if the
        change could not be committed, or if the result is unknown.
        """
        if self._flusher is not None or self._is_committing_here or self._queue:
            return await self.apply(change)
        self._is_committing_here = True
        try:
            return await self.apply_beside(change)
        finally:
            self._is_committing_here = False
            if self._queue:
                self._flusher = asyncio.get_running_loop().create_task(self._flush())

    async def apply_beside(self, change: Change) -> Result:
        """Commit a change at once, without the queue, even while another commit is under way, and return its result.

        Why not queue it: a queued change waits for the commit under way. A caller with several large changes runs this
        in tasks, and makes the next change while the earlier ones are committed. Raises: StoreError if the change could
        not be committed, or if the result is unknown.
        """
        results: list[Result | StoreError] = []
        await self._commit([_Waiting(change, results.append, 1, 0, Urgency.WAITED_FOR)])
        return _checked(results)[0]

    async def apply_many(self, changes: Sequence[Change]) -> list[Result]:
        """Give many small changes to the store in one call, even while a commit is under way. Return their results.

        The results have the order of the changes.

        Raises: the first StoreError of a change; other changes may have been committed.
        """
        results: list[Result | StoreError] = []
        await self._commit([_Waiting(change, results.append, 1, 0, Urgency.WAITED_FOR) for change in changes])
        return _checked(results)

    async def submit_all(self, changes: Sequence[Change]) -> list[Result]:
        """Queue changes, at least one, without waiting for room. Return all results once every change has its result.

        The results have the order of the changes.

        Raises: the first StoreError of a change; other changes may have been committed.
        """
        results: list[Result | StoreError] = []
        done = asyncio.get_running_loop().create_future()

        def answer(result: Result | StoreError) -> None:
            """Collect the result of a change; wake the caller when all results are there."""
            results.append(result)
            if len(results) == len(changes) and not done.done():
                done.set_result(None)

        for change in changes:
            self.post(change, answer)
        await done
        return _checked(results)

    def submit(self, change: Change) -> asyncio.Future[Result]:
        """Queue a change without waiting for room. Return the future of its result, or of its StoreError."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.post(change, future)
        return future

    def post(
        self,
        change: Change,
        answer: asyncio.Future[Result] | Answer,
        urgency: Urgency = Urgency.WAITED_FOR,
        waited: float = 0.0,
    ) -> None:
        """Queue a change without waiting for room. Later, `answer` receives its result or the error.

        `waited`: seconds for which a change of the urgency `LINGER` was held elsewhere. They count towards
        `LINGER_SECONDS`.
        """
        rows = 1 + len(change.runs) + len(change.spans) + len(change.events)
        size = 200 * rows
        for body in change.bodies:
            size += len(body.data)
        if change.run is not None and change.run.result is not None:
            size += 2 * len(change.run.result)
        since = asyncio.get_running_loop().time() - waited if urgency is Urgency.LINGER else 0.0
        self._queue.append(_Waiting(change, answer, rows, size, urgency, since))
        self._queued_with[urgency] += 1
        if len(self._queue) >= FLUSH_AT_CHANGES or self._shortens_linger(urgency):
            self._hurry.set()
        if self._flusher is None and not self._is_committing_here:
            self._flusher = asyncio.get_running_loop().create_task(self._flush())

    async def flush(self) -> None:
        """Commit the queued changes without lingering, and return when the queue is empty.

        This does not wait for a commit that `apply_here`, `apply_beside` or `apply_many` has under way.
        """
        self._flushing += 1
        try:
            while self._flusher is not None:
                self._hurry.set()
                await asyncio.shield(self._flusher)
        finally:
            self._flushing -= 1

    async def _flush(self) -> None:
        """Commit batch after batch until the queue is empty. Runs in the task `_flusher`."""
        try:
            while self._queue:
                await self._linger()
                await self._commit(self._next_batch())
                if len(self._queue) < MAX_QUEUED_CHANGES:
                    self._room.set()
        finally:
            self._flusher = None

    def _shortens_linger(self, urgency: Urgency) -> bool:
        """Return True if a change of this urgency, just queued, may end or shorten the present linger."""
        if urgency is Urgency.WHEN_IDLE and self._queued_with[urgency] > 1:
            return self._is_lingering_busy and not self._is_busy()
        return urgency is Urgency.WAITED_FOR or (urgency is not Urgency.LINGER and self._queued_with[urgency] == 1)

    def _linger_until(self) -> float:
        """Return until when the queued changes may linger, in the event loop's time: the most urgent change decides.

        Set `_is_lingering_busy`. Called only while no caller waits for a queued change.
        """
        self._is_lingering_busy = False
        if self._queued_with[Urgency.NEXT_PACE]:
            return self._last_commit_at + self._pace
        if self._queued_with[Urgency.WHEN_IDLE]:
            self._is_lingering_busy = self._is_busy()
            return self._last_commit_at + self._pace * (BUSY_LINGER_PACES if self._is_lingering_busy else 1)
        return self._queue[0].since + LINGER_SECONDS

    async def _linger(self) -> None:
        """Wait for further changes, which will share the commit, until a queued change may linger no longer.

        Return earlier if a caller waits for a queued change, if `flush` is waiting, or if `FLUSH_AT_CHANGES` changes
        are queued.
        """
        loop = asyncio.get_running_loop()
        while not (self._queued_with[Urgency.WAITED_FOR] or self._flushing) and len(self._queue) < FLUSH_AT_CHANGES:
            wait = self._linger_until() - loop.time()
            if wait <= MIN_LINGER_SECONDS:
                break
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._hurry.wait()
        self._last_commit_at = loop.time()

    def _next_batch(self) -> list[_Waiting]:
        """Take as many changes from the queue as fit in one commit, and return them: at most one per guarded row.

        The batch ends before a second change of one row. A change whose future was cancelled is taken from the queue
        and not committed.
        """
        batch: list[_Waiting] = []
        guarded: set[str] = set()
        rows = size = 0
        while self._queue:
            waiting = self._queue[0]
            guard = waiting.change.guard
            key = None if guard is None else guard.id
            if batch and (
                key in guarded or rows + waiting.rows > MAX_BATCH_ROWS or size + waiting.size > MAX_BATCH_BYTES
            ):
                break
            self._queue.popleft()
            self._queued_with[waiting.urgency] -= 1
            if isinstance(waiting.answer, asyncio.Future) and waiting.answer.cancelled():
                continue
            if key is not None:
                guarded.add(key)
            rows, size = rows + waiting.rows, size + waiting.size
            batch.append(waiting)
        return batch

    async def _commit(self, batch: list[_Waiting]) -> None:
        """Commit a batch, with the claim of a worker that wants to share the commit, and answer each change.

        If the store cannot apply one change, only that change fails. If the store is unavailable, all changes fail.
        """
        if not batch:
            return
        changes = [waiting.change for waiting in batch]
        request = self._claims.next_request(changes)
        applied: Applied | None = None
        try:
            applied = await self._store.apply(changes, claim_request=None if request is None else request[1])
        except StoreUnavailable as error:
            self.is_failing = True
            for waiting in batch:
                _answer(waiting, error)
        except Exception as error:
            await self._commit_halves(batch, error)
        finally:
            if request is not None and (applied is None or applied.claimed is None):
                request[0].claim_result(None)
        if applied is None:
            return
        self.is_failing = False
        accepted: list[Change] = []
        for waiting, result in zip(batch, applied.results, strict=True):
            if result.status == "accepted":
                accepted.append(waiting.change)
            _answer(waiting, result)
        if accepted:
            self._report_accepted(accepted, applied)
        if request is not None and applied.claimed is not None:
            request[0].claim_result(applied.claimed)

    async def _commit_halves(self, batch: list[_Waiting], error: Exception) -> None:
        """Commit the two halves of a batch that failed with `error`, so that only the change that causes it fails.

        A batch of one change is not tried again; its change is answered with the error.
        """
        if len(batch) == 1:
            _answer(batch[0], error if isinstance(error, StoreError) else StoreError(f"apply failed: {error!r}"))
            return
        middle = len(batch) // 2
        await self._commit(batch[:middle])
        await self._commit(batch[middle:])

    def _report_accepted(self, accepted: list[Change], applied: Applied) -> None:
        """Call the callback of `call_after_commit`, and publish the events of the accepted changes.

        `applied`: the store's answer to the commit. Its time becomes the time of the events.
        """
        if self._after_commit is not None:
            self._after_commit(accepted, applied)
        publisher = self._publisher
        if publisher is not None and publisher.has_listeners:
            for change in accepted:
                for event in change.events:
                    publisher.publish(replace(event, at=applied.now, change=change.id))


def _checked(results: Sequence[Result | StoreError]) -> list[Result]:
    """Return the results. Raises: the first StoreError among them."""
    checked: list[Result] = []
    for result in results:
        if isinstance(result, StoreError):
            raise result
        checked.append(result)
    return checked


def _answer(waiting: _Waiting, result: Result | StoreError) -> None:
    """Give the result or error of a change to the future or function that waits for it."""
    answer = waiting.answer
    if not isinstance(answer, asyncio.Future):
        answer(result)
    elif not answer.done():
        if isinstance(result, StoreError):
            answer.set_exception(result)
        else:
            answer.set_result(result)
