"""The thread-safe submitter: brings changes from callers' event loops and threads to the batcher, and results back."""

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
    """A `Writer` that commits through the engine loop, in one hop there and one hop back for all changes that coincide.

    Unless the batcher's queue is full, a change needs one future and no task on the engine loop.
    """

    def __init__(self, batcher: Batcher, post: Callable[..., None]) -> None:
        """`post` calls a function on the engine loop soon, from any thread."""
        self._batcher = batcher
        self._post = post
        self._queue: deque[tuple[Change, _ResultFuture]] = deque()
        self._lock = threading.RLock()  # a signal may come while its thread has it
        self._is_posted = self._is_closed = False
        self._results: dict[asyncio.AbstractEventLoop, list[tuple[_ResultFuture, Result | StoreError]]] = {}
        self._applying: set[asyncio.Task[None]] = set()

    async def apply(self, change: Change) -> Result:
        """Commit a change and return its result. Raises: StoreError. Thread: any event loop."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._submit(change, future)
        return await future

    def apply_blocking(self, change: Change) -> Result:
        """Commit a change and return its result, blocking a thread that runs no event loop. Raises: StoreError."""
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()
        self._submit(change, future)
        return future.result()

    async def close(self) -> None:
        """Refuse new changes and give the queued ones to the batcher, which the caller flushes next.

        Why: once the engine loop has stopped, the futures of changes would never be resolved. Thread: engine loop.
        """
        with self._lock:
            self._is_closed = True
        self._submit_queued()
        await asyncio.gather(*self._applying)

    def _submit(self, change: Change, future: _ResultFuture) -> None:
        """Queue a change whose result `future` receives. Raises: StoreUnavailable after `close`. Thread: any."""
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable("the store was closed meanwhile; nothing was stored")
            self._queue.append((change, future))
            if not self._is_posted:  # `_submit_queued` clears this first, so a change queued now is taken by that hop
                self._is_posted = True
                self._post(self._submit_queued)

    def _submit_queued(self) -> None:
        """Hand every queued change to the batcher. Thread: engine loop."""
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
        """Resolve the future of a blocked thread now, or that of an event loop with others in one hop to that loop."""
        if isinstance(future, concurrent.futures.Future):
            _resolve(future, result)
            return
        loop = future.get_loop()
        if not self._results:
            asyncio.get_running_loop().call_soon(self._deliver_results)
        self._results.setdefault(loop, []).append((future, result))

    def _deliver_results(self) -> None:
        results, self._results = self._results, {}
        for loop, resolved in results.items():
            with contextlib.suppress(RuntimeError):  # the caller's loop was closed meanwhile
                loop.call_soon_threadsafe(_resolve_all, resolved)


def _resolve_all(resolved: list[tuple[_ResultFuture, Result | StoreError]]) -> None:
    for future, result in resolved:
        _resolve(future, result)


def _resolve(future: Any, result: Result | StoreError) -> None:
    if future.done():
        return
    if isinstance(result, StoreError):
        future.set_exception(result)
    else:
        future.set_result(result)
