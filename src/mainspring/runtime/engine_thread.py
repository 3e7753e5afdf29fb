"""The engine thread: runs the engine's event loop, so that a blocked handler never delays planning or a heartbeat."""

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

#: `rest` waits this many turns of the event loop for tasks to end: cancelled ones need no more.
CANCELLATION_TURNS = 20

#: Every `ThreadLoop` of this process, for `_after_fork`.
_all: weakref.WeakSet[ThreadLoop] = weakref.WeakSet()


def _after_fork() -> None:
    for one in _all:
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop loop if uvloop is installed, else asyncio's.

    The engine spends half of its time in the loop itself, so a faster one pays.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class EngineLoop(Protocol):
    """The event loop on which the engine's coroutines run, and its thread."""

    @property
    def begun(self) -> bool:
        """True while the loop runs in this process: the first `call` starts it."""
        ...

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine loop, started if needed, and return its value. Thread: any event loop."""
        ...

    def post(self, callback: Any, *args: Any) -> None:
        """Call a function on the engine loop soon; do nothing if that loop does not run. Thread: any."""
        ...

    async def rest(self, unused: Callable[[], bool]) -> None:
        """End the loop's thread once nothing is under way on it, if `unused()` is True then, and wait for its end.

        If tasks do not end within `CANCELLATION_TURNS`, return; the thread ends after the last of them. The next `call`
        starts a new thread. `unused` is called on the engine loop.
        """
        ...


class ThreadLoop:
    """An event loop in a daemon thread. The first call starts it, also after `rest` and in a forked child."""

    def __init__(self, threads: Threads | None = None) -> None:
        self._threads = threads or SystemThreads()
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Forget the thread and make a new lock, as a forked child must: it has no copy of its parent's thread."""
        self._lock = threading.RLock()  # a signal may come while its thread has it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        #: Calls whose answer is awaited.
        self._pending_calls = 0

    def _start(self) -> None:
        """Start the thread with a new event loop, and return when that loop runs."""
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
            self._pending_calls += 1
        future.add_done_callback(self._count_answer)
        return await asyncio.wrap_future(future)

    def _count_answer(self, _: object) -> None:
        with self._lock:
            self._pending_calls -= 1

    def post(self, callback: Any, *args: Any) -> None:
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # it ended just now
                loop.call_soon_threadsafe(callback, *args)

    async def rest(self, unused: Callable[[], bool]) -> None:
        has_ended: concurrent.futures.Future[bool] = concurrent.futures.Future()
        with self._lock:
            loop, ended = self._loop, self._ended
            if loop is None:
                return
            loop.call_soon_threadsafe(self._try_to_end, loop, unused, has_ended, CANCELLATION_TURNS)
        # Shielded: the engine thread resolves these futures, so a cancellation of this task must not reach them.
        if await asyncio.shield(asyncio.wrap_future(has_ended)):
            await asyncio.shield(asyncio.wrap_future(ended))

    def _try_to_end(
        self,
        loop: asyncio.AbstractEventLoop,
        unused: Callable[[], bool],
        has_ended: concurrent.futures.Future[bool],
        turns: int,
    ) -> None:
        """Stop the loop if no task or call is under way, else try again next turn. Thread: engine loop.

        Give up if `unused()` is False. `has_ended` gets True once the loop is stopped. It gets False on giving up, or
        if tasks or calls are left after `turns` turns; the loop then stops after the last of these. The look is made
        under `_lock`, so that no call is submitted meanwhile; calls submitted before it are in `_pending_calls`.
        """
        with self._lock:
            over = self._loop is not loop
            wanted = not over and unused()
            tasks = asyncio.all_tasks(loop)
            if wanted and not tasks and not self._pending_calls:
                self._loop = None
                loop.stop()
                over = True
        if (over or not wanted or turns == 0) and not has_ended.done():
            has_ended.set_result(over)
        if over or not wanted:
            return
        if turns > 0 or not tasks:
            loop.call_soon(self._try_to_end, loop, unused, has_ended, max(turns - 1, 0))
        else:  # the caller of `rest` waits no longer: the thread ends when the tasks under way have ended
            again = partial(self._try_to_end, loop, unused, has_ended, 0)
            tasks.pop().add_done_callback(lambda _: again())


class SameLoop:
    """An engine loop without a thread of its own, under virtual time: the test's event loop, which runs already."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.begun = True

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def post(self, callback: Any, *args: Any) -> None:
        self._loop.call_soon(callback, *args)

    async def rest(self, unused: Callable[[], bool]) -> None:
        """Do nothing: there is no thread to end."""
