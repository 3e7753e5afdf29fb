"""The thread-safe submitter: passes changes from callers' event loops and threads to the batcher, and results back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from mainspring.engine.commit.batcher import Batcher
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError, StoreUnavailable

_ResultFuture = asyncio.Future[Result] | concurrent.futures.Future[Result]


class ThreadsafeSubmitter:
    """A `Writer` that commits through the engine loop, which is woken once for all changes that coincide.

    Their results come back to an event loop together, too. Unless the batcher's queue is full, a change needs one
    future and no task on the engine loop.
    """

    def __init__(self, batcher: Batcher, post: Callable[..., None]) -> None:
        """Commit through `batcher`. `post` calls a function on the engine loop soon, from any thread."""
        self._batcher = batcher
        self._post = post
        self._queue: deque[tuple[Change, _ResultFuture]] = deque()
        self._lock = threading.RLock()  # reentrant: a signal handler may enqueue while its thread holds the lock
        self._is_posted = self._is_closed = False
        #: Results to deliver, with their futures, by the event loop of the caller.
        self._results: dict[asyncio.AbstractEventLoop, list[tuple[_ResultFuture, Result | StoreError]]] = {}
        #: Tasks of changes that wait for room in the batcher's queue.
        self._applying: set[asyncio.Task[None]] = set()

    async def apply(self, change: Change) -> Result:
        """Commit a change and return its result. Raises: StoreError, always after `close`. Thread: any event loop."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._submit(change, future)
        return await future

    def apply_blocking(self, change: Change) -> Result:
        """Commit a change and return its result. Block the calling thread, which runs no event loop, until then.

        Raises: StoreError, always after `close`.
        """
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()
        self._submit(change, future)
        return future.result()

    async def close(self) -> None:
        """Refuse new changes, and give the queued changes to the batcher, which the caller flushes next.

        Return when no change waits for room in the batcher's queue. Why refuse: a change that came after the engine
        loop has stopped would never get a result. Thread: engine loop.
        """
        with self._lock:
            self._is_closed = True
        self._submit_queued()
        await asyncio.gather(*self._applying)

    def _submit(self, change: Change, future: _ResultFuture) -> None:
        """Queue a change; `future` will receive its result. Raises: StoreUnavailable after `close`. Thread: any."""
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable("the store was closed meanwhile; nothing was stored")
            self._queue.append((change, future))
            if not self._is_posted:  # `_submit_queued` clears this before it takes changes, so it takes this one, too
                self._is_posted = True
                self._post(self._submit_queued)

    def _submit_queued(self) -> None:
        """Hand every queued change to the batcher. While its queue is full, each change waits for room in a task.

        A change whose future was cancelled is dropped. Thread: engine loop.
        """
        self._is_posted = False
        for _ in range(len(self._queue)):
            change, future = self._queue.popleft()
            if future.cancelled():
                continue
            if self._batcher.full or self._applying:
                task = asyncio.get_running_loop().create_task(self._apply_when_there_is_room(change, future))
                self._applying.add(task)
                task.add_done_callback(self._applying.discard)
            else:
                self._batcher.post(change, partial(self._queue_result, future))

    async def _apply_when_there_is_room(self, change: Change, future: _ResultFuture) -> None:
        """Commit a change once the batcher's queue has room; `future` receives its result."""
        try:
            result: Result | StoreError = await self._batcher.apply(change)
        except StoreError as error:
            result = error
        self._queue_result(future, result)

    def _queue_result(self, future: _ResultFuture, result: Result | StoreError) -> None:
        """Give a result to the future of its caller: at once if the caller is a blocked thread.

        If the caller is a task, the result waits for the next turn of the engine loop: `_deliver_results` then passes
        all results for one event loop in one call.
        """
        if isinstance(future, concurrent.futures.Future):
            _resolve(future, result)
            return
        loop = future.get_loop()
        if not self._results:
            asyncio.get_running_loop().call_soon(self._deliver_results)
        self._results.setdefault(loop, []).append((future, result))

    def _deliver_results(self) -> None:
        """Pass the queued results to the event loops of their callers. Thread: engine loop."""
        results, self._results = self._results, {}
        for loop, resolved in results.items():
            with contextlib.suppress(RuntimeError):  # the caller's loop was closed meanwhile
                loop.call_soon_threadsafe(_resolve_all, resolved)


def _resolve_all(resolved: list[tuple[_ResultFuture, Result | StoreError]]) -> None:
    """Give each future its result or error. Thread: the event loop of these futures."""
    for future, result in resolved:
        _resolve(future, result)


def _resolve(future: Any, result: Result | StoreError) -> None:
    """Give a future its result or error, unless it is done already, for example cancelled."""
    if future.done():
        return
    if isinstance(result, StoreError):
        future.set_exception(result)
    else:
        future.set_result(result)
