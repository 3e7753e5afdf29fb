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

#: Turns of the event loop for which `stop_when_idle` waits for tasks to end. Cancelled tasks need no more.
CANCELLATION_TURNS = 20

#: Every `ThreadLoop` of this process, for `_after_fork`.
_all: weakref.WeakSet[ThreadLoop] = weakref.WeakSet()


def _after_fork() -> None:
    """Make every `ThreadLoop` forget its thread, which a forked child does not have. Python calls this in the child."""
    for one in _all:
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if it is installed, else asyncio's.

    Why: the engine spends half of its time in the event loop itself, and uvloop's is faster.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class EngineLoop(Protocol):
    """The event loop on which the engine's coroutines run, and the thread that runs it."""

    @property
    def begun(self) -> bool:
        """True while the loop runs in this process. The first `call` starts it."""
        ...

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine loop (started if needed) and return its value. Thread: any event loop."""
        ...

    def post(self, callback: Any, *args: Any) -> None:
        """Schedule `callback(*args)` on the engine loop; do nothing if that loop does not run. Thread: any."""
        ...

    async def stop_when_idle(self, is_unused: Callable[[], bool]) -> None:
        """Stop the loop and end its thread once no task or call is left; keep both if `is_unused()` returns False.

        Return when the thread has ended or is kept. If tasks last more than `CANCELLATION_TURNS` turns of the loop,
        return early; the thread ends after them. An app calls this after it closed its runtime. `is_unused`, called on
        the engine loop, returns False if the runtime was opened again. After the end, `call` starts a new thread.
        """
        ...


class ThreadLoop:
    """An event loop in a daemon thread.

    The first `call` starts the thread. So does the first `call` after `stop_when_idle`, and in a forked child.
    """

    def __init__(self, threads: Threads | None = None) -> None:
        self._threads = threads or SystemThreads()
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Return to the state before the first `call`. A forked child needs this: it does not have the thread."""
        self._lock = threading.RLock()  # reentrant: a signal handler may need it in the thread that holds it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        #: Calls that were submitted and have not ended.
        self._pending_calls = 0

    def _start(self) -> None:
        """Start the thread with a new event loop, and return when the loop runs."""
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
        """Count a call as ended. Its future calls this, on any thread."""
        with self._lock:
            self._pending_calls -= 1

    def post(self, callback: Any, *args: Any) -> None:
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed just now
                loop.call_soon_threadsafe(callback, *args)

    async def stop_when_idle(self, is_unused: Callable[[], bool]) -> None:
        has_ended: concurrent.futures.Future[bool] = concurrent.futures.Future()
        with self._lock:
            loop, ended = self._loop, self._ended
            if loop is None:
                return
            loop.call_soon_threadsafe(self._stop_if_idle, loop, is_unused, has_ended, CANCELLATION_TURNS)
        # Shielded: the engine thread resolves these futures, so a cancellation of this task must not reach them.
        if await asyncio.shield(asyncio.wrap_future(has_ended)):
            await asyncio.shield(asyncio.wrap_future(ended))

    def _stop_if_idle(
        self,
        loop: asyncio.AbstractEventLoop,
        is_unused: Callable[[], bool],
        has_ended: concurrent.futures.Future[bool],
        turns: int,
    ) -> None:
        """Stop `loop` if it is unused and no task or call is under way; else check again in the next turn of the loop.

        `stop_when_idle` posts this and waits for the result of `has_ended`: True once the loop is stopped, else False.
        If `is_unused()` returns False, the result is False and the checks end. If tasks or calls are left after `turns`
        turns, the result is False but the checks go on, so that the loop stops after the last task. The check is made
        under `_lock`, so that no call is submitted meanwhile. Calls submitted before are counted in `_pending_calls`.
        Thread: engine loop.
        """
        with self._lock:
            over = self._loop is not loop
            wanted = not over and is_unused()
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
            loop.call_soon(self._stop_if_idle, loop, is_unused, has_ended, max(turns - 1, 0))
        else:  # the caller of `stop_when_idle` no longer waits: check again when a task has ended
            again = partial(self._stop_if_idle, loop, is_unused, has_ended, 0)
            tasks.pop().add_done_callback(lambda _: again())


class SameLoop:
    """The engine loop of a test under virtual time: the test's event loop, which runs already. It has no thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.begun = True

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def post(self, callback: Any, *args: Any) -> None:
        self._loop.call_soon(callback, *args)

    async def stop_when_idle(self, is_unused: Callable[[], bool]) -> None:
        """Do nothing: there is no thread to end."""
