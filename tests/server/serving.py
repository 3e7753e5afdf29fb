"""A real server over HTTP, on a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from mainspring import Mainspring
from mainspring.api.app import build
from mainspring.server.http import bind


class Served:
    """A served app and its URL."""

    def __init__(self, ms: Mainspring, settings: Any = None) -> None:
        self.ms = ms
        self.app = build(ms, settings)
        # As `serve` binds it: a socket made without IPPROTO_TCP does not get TCP_NODELAY from asyncio, and each answer
        # then waits 40 ms for the client's delayed ACK.
        (self._socket,) = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self.app, log_level="error", lifespan="off", timeout_graceful_shutdown=5)
        self._server = uvicorn.Server(config)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(20)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        asyncio.get_running_loop().call_later(0, self._look)
        await self._server.serve([self._socket])

    def _look(self) -> None:
        if self._server.started:
            self._ready.set()
        else:
            asyncio.get_running_loop().call_later(0.01, self._look)

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _end(self) -> None:
        self.app.state.api.closing.set()
        self._server.should_exit = True


@contextlib.contextmanager
def served(ms: Mainspring, settings: Any = None) -> Iterator[Served]:
    """Serve an app whose engine is not started: commands work, nothing fires."""
    found = Served(ms, settings)
    found.start()
    try:
        yield found
    finally:
        found.stop()
