"""The engine's own thread and loop: a blocked handler never delays planning or a heartbeat."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from mainspring.ports.threads import SystemThreads, Threads

T = TypeVar("T")

#: What was cancelled ends within so many turns of the loop.
TURNS = 20

_all: weakref.WeakSet[ThreadLoop] = weakref.WeakSet()


def _after_fork() -> None:
    for one in _all:
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed: the engine's loop is ours alone, and half of its work is the loop's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class EngineLoop(Protocol):
    """Where the engine's coroutines run."""

    @property
    def begun(self) -> bool:
        """Whether anything was called in this process yet."""
        ...

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the engine's loop, wait on the caller's."""
        ...

    def post(self, callback: Any, *args: Any) -> None:
        """Call a function on the engine's loop soon, if there is one; from any thread."""
        ...

    async def rest(self, unused: Callable[[], bool]) -> None:
        """Let go of the thread, unless it is used, once nothing is under way on it; the next call begins again."""
        ...


class ThreadLoop:
    """A loop in a daemon thread, started at the first call: also at the first after a rest, and in a forked child."""

    def __init__(self, threads: Threads | None = None) -> None:
        self._threads = threads or SystemThreads()
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Begin anew, as in a forked child: the thread stayed with the parent, and so did whoever held the lock."""
        self._lock = threading.RLock()  # a signal may come while its thread has it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._asked = 0

    def _start(self) -> None:
        loop, ready = _new_loop(), threading.Event()
        ended: concurrent.futures.Future[None] = concurrent.futures.Future()

        def body() -> None:
            asyncio.set_event_loop(loop)
            loop.call_soon(ready.set)
            try:
                loop.run_forever()
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
            finally:
                loop.close()
                ended.set_result(None)

        self._threads.start(body, "mainspring-engine")
        ready.wait()
        self._loop, self._ended = loop, ended

    @property
    def begun(self) -> bool:
        return self._loop is not None

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop is None:
                self._start()
                assert self._loop is not None
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._asked += 1
        future.add_done_callback(self._answered)
        return await asyncio.wrap_future(future)

    def _answered(self, _: object) -> None:
        with self._lock:
            self._asked -= 1

    def post(self, callback: Any, *args: Any) -> None:
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # it went to rest just now
                loop.call_soon_threadsafe(callback, *args)

    async def rest(self, unused: Callable[[], bool]) -> None:
        told: concurrent.futures.Future[bool] = concurrent.futures.Future()
        with self._lock:
            loop, ended = self._loop, self._ended
            if loop is None:
                return
            loop.call_soon_threadsafe(self._try_to_end, loop, unused, told, TURNS)
        if await asyncio.shield(asyncio.wrap_future(told)):  # not ours alone to cancel: the thread sets them, too
            await asyncio.shield(asyncio.wrap_future(ended))

    def _try_to_end(
        self,
        loop: asyncio.AbstractEventLoop,
        unused: Callable[[], bool],
        told: concurrent.futures.Future[bool],
        turns: int,
    ) -> None:
        """On the loop. With the lock nobody can ask, and who asked before is counted."""
        with self._lock:
            over = self._loop is not loop
            wanted = not over and unused()
            tasks = asyncio.all_tasks(loop)
            if wanted and not tasks and not self._asked:
                self._loop = None
                loop.stop()
                over = True
        if (over or not wanted or turns == 0) and not told.done():
            told.set_result(over)
        if over or not wanted:
            return
        if turns > 0 or not tasks:
            loop.call_soon(self._try_to_end, loop, unused, told, max(turns - 1, 0))
        else:  # nobody waits any more: whatever is under way ends the thread when it ends
            again = partial(self._try_to_end, loop, unused, told, 0)
            tasks.pop().add_done_callback(lambda _: again())


class SameLoop:
    """Under virtual time the engine lives on the test's own loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.begun = True

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def post(self, callback: Any, *args: Any) -> None:
        self._loop.call_soon(callback, *args)

    async def rest(self, unused: Callable[[], bool]) -> None:
        """It has no thread."""
