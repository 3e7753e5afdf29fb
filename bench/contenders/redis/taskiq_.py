"""taskiq: its broker on Redis Streams acknowledged after the run, 100 at once, uvloop as its command uses it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.contenders.redis.peer import RedisPeer, run, stopped

CONCURRENCY = 100


class Taskiq(RedisPeer):
    """No result backend: its results would be a key and a command more for each."""

    open_rows = """
local group = redis.call('XINFO', 'GROUPS', 'taskiq')[1]
local said = {}
for i = 1, #group, 2 do said[group[i]] = group[i + 1] end
return said['pending'] + said['lag']
"""

    async def open(self) -> None:
        logging.getLogger("taskiq").setLevel(logging.ERROR)
        self._broker: Any = RedisStreamBroker(self.url)

        @self._broker.task(task_name="nothing")  # type: ignore[untyped-decorator,unused-ignore]  # as for all peers
        async def nothing(number: int | None = None) -> None:
            self.ran.one(number)

        self._task: Any = nothing
        await self._broker.startup()

    async def enqueue(self, number: int | None = None) -> None:
        await (self._task.kiq() if number is None else self._task.kiq(number))

    async def enqueue_many(self, n: int) -> None:
        """It has no bulk call: a few side by side."""
        for start in range(0, n, 20):
            await asyncio.gather(*(self._task.kiq() for _ in range(min(20, n - start))))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        task = asyncio.create_task(
            run_receiver_task(self._broker, max_async_tasks=CONCURRENCY, max_prefetch=CONCURRENCY)
        )
        try:
            yield
        finally:
            await stopped(task)

    async def close(self) -> None:
        await self._broker.shutdown()


def _run(work: Any) -> Any:
    """Its receiver does not end while it waits for a message; what is measured is over then."""
    return uvloop.new_event_loop().run_until_complete(work)


if __name__ == "__main__":
    run(Taskiq, "bench.contenders.redis.taskiq_", runner=_run)
    os._exit(0)
