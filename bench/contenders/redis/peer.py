"""What every peer on Redis shares: a look at the server beside it, and handlers that run in threads."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from bench.contenders.common import appended
from bench.contenders.postgres.peer import Peer, Ran, run

__all__ = ["Looks", "RedisPeer", "ThreadedPeer", "in_thread", "run", "stopped"]


class Looks:
    """A connection beside a contender's own; it asks by Lua scripts that return a count."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @classmethod
    async def connect(cls, url: str) -> Looks:
        from redis.asyncio import Redis

        return cls(Redis.from_url(url))

    async def count(self, script: str) -> int:
        return int(await self.client.eval(script, 0))

    async def any(self, script: str) -> bool:
        return await self.count(script) > 0

    async def durability(self) -> str:
        """A server has one setting for all its connections."""
        said = await self.client.config_get("append*")
        words = {_text(name): _text(value) for name, value in said.items()}
        return appended(words["appendonly"], words["appendfsync"])

    async def close(self) -> None:
        await self.client.aclose()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


class RedisPeer(Peer):
    """A queue on one server; `open_rows` is a script that counts what has not ended."""

    looks = Looks

    async def durability(self) -> str:
        look = await Looks.connect(self.url)
        try:
            return await look.durability()
        finally:
            await look.close()


class _RanInThreads(Ran):
    """Counting is one atomic call."""

    def expect(self, n: int) -> None:
        super().expect(n)
        self._last = n
        self._numbers = itertools.count(1)

    def one(self, number: int | None = None) -> None:
        if number is not None:
            self.seen[number] = time.perf_counter()
        if next(self._numbers) == self._last:
            self._loop.call_soon_threadsafe(self.done.set)


class ThreadedPeer(RedisPeer):
    """Its handlers run in threads, and enqueueing blocks."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ran = _RanInThreads()


async def stopped(task: asyncio.Task[Any]) -> None:
    """Cancel a worker, several times: some swallow a cancellation that comes at a bad moment. It may still not end."""
    for _ in range(3):
        task.cancel()
        await asyncio.wait([task], timeout=0.3)
        if task.done():
            return


@asynccontextmanager
async def in_thread(work: Callable[[], Any], stop: Callable[[], Any]) -> AsyncIterator[None]:
    """A worker that blocks, in a thread of its own until it is told to stop."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        await asyncio.to_thread(thread.join, 10)
