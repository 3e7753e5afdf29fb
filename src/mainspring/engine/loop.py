"""The engine's own thread and loop: a blocked handler never delays planning or a heartbeat."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from mainspring.ports.threads import SystemThreads, Threads

T = TypeVar("T")


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
        """Call a function on the engine's loop soon; from any thread."""
        ...

    def stop(self) -> None: ...


class ThreadLoop:
    """A loop in a daemon thread, started at the first call and again in a forked child."""

    def __init__(self, threads: Threads | None = None) -> None:
        self._threads = threads or SystemThreads()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._ended = threading.Event()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._pid != os.getpid():
            with self._lock:
                if self._loop is None or self._pid != os.getpid():
                    self._start()
        assert self._loop is not None
        return self._loop

    def _start(self) -> None:
        ready = threading.Event()
        self._ended = ended = threading.Event()

        def body() -> None:
            loop = _new_loop()
            self._loop = loop
            asyncio.set_event_loop(loop)
            loop.call_soon(ready.set)
            try:
                loop.run_forever()
            finally:
                loop.close()
                ended.set()

        self._pid = os.getpid()
        self._threads.start(body, "mainspring-engine")
        ready.wait()

    @property
    def begun(self) -> bool:
        return self.thread_loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run on the engine's loop; the answer is for any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._running())

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self.submit(work))

    def post(self, callback: Any, *args: Any) -> None:
        self._running().call_soon_threadsafe(callback, *args)

    @property
    def thread_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop, if it runs in this process."""
        return self._loop if self._pid == os.getpid() else None

    def stop(self) -> None:
        """End the thread; a later call starts a new one."""
        loop, self._loop = self.thread_loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._ended.wait(5)


class SameLoop:
    """Under virtual time the engine lives on the test's own loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.begun = True

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def post(self, callback: Any, *args: Any) -> None:
        self._loop.call_soon(callback, *args)

    def stop(self) -> None:
        """Nothing of its own to stop."""
