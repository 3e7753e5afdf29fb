"""Changes from the callers' loops and threads to the engine's, and the answers back; one hop for all that meet."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from mainspring.engine.batcher import Batcher
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError, StoreUnavailable

_Asked = asyncio.Future[Result] | concurrent.futures.Future[Result]


class Crossing:
    """The short way for enqueues: no task on the engine's loop, no future for each of two loops."""

    def __init__(self, batcher: Batcher, post: Callable[..., None]) -> None:
        self._batcher = batcher
        self._post = post
        self._asked: deque[tuple[Change, _Asked]] = deque()
        self._asking = threading.RLock()  # a signal may come while its thread has it
        self._posted = self._closed = False
        self._answers: dict[asyncio.AbstractEventLoop, list[tuple[_Asked, Result | StoreError]]] = {}
        self._waiting: set[asyncio.Task[None]] = set()

    async def apply(self, change: Change) -> Result:
        """Commit a change with its neighbours; called on any loop."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._ask(change, future)
        return await future

    def apply_blocking(self, change: Change) -> Result:
        """The same for a thread without a loop."""
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()
        self._ask(change, future)
        return future.result()

    async def close(self) -> None:
        """Hand on what was asked for, and take nothing more: who asks a loop that ended would never hear."""
        with self._asking:
            self._closed = True
        self._take()
        await asyncio.gather(*self._waiting)

    def _ask(self, change: Change, future: _Asked) -> None:
        with self._asking:
            if self._closed:
                raise StoreUnavailable("the store was closed meanwhile; nothing was stored")
            self._asked.append((change, future))
            if not self._posted:  # whoever takes clears this first, so what is appended now is taken by that hop
                self._posted = True
                self._post(self._take)

    def _take(self) -> None:
        """On the engine's loop."""
        self._posted = False
        for _ in range(len(self._asked)):
            change, future = self._asked.popleft()
            if future.cancelled():
                continue
            if self._batcher.full or self._waiting:
                task = asyncio.get_running_loop().create_task(self._when_there_is_room(change, future))
                self._waiting.add(task)
                task.add_done_callback(self._waiting.discard)
            else:
                self._batcher.post(change, partial(self._answer, future))

    async def _when_there_is_room(self, change: Change, future: _Asked) -> None:
        try:
            result: Result | StoreError = await self._batcher.apply(change)
        except StoreError as error:
            result = error
        self._answer(future, result)

    def _answer(self, future: _Asked, result: Result | StoreError) -> None:
        if isinstance(future, concurrent.futures.Future):
            _resolve(future, result)
            return
        loop = future.get_loop()
        if not self._answers:
            asyncio.get_running_loop().call_soon(self._give)
        self._answers.setdefault(loop, []).append((future, result))

    def _give(self) -> None:
        answers, self._answers = self._answers, {}
        for loop, some in answers.items():
            with contextlib.suppress(RuntimeError):  # a loop that was closed wants no answer
                loop.call_soon_threadsafe(_resolve_all, some)


def _resolve_all(answers: list[tuple[_Asked, Result | StoreError]]) -> None:
    for future, result in answers:
        _resolve(future, result)


def _resolve(future: Any, result: Result | StoreError) -> None:
    if future.done():
        return
    if isinstance(result, StoreError):
        future.set_exception(result)
    else:
        future.set_result(result)
