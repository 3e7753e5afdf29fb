"""Huey on Redis with thread workers: a task is taken out of its list before it runs, so it runs at most once."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from huey import RedisHuey

from bench.contenders.redis.peer import ThreadedPeer, run

THREADS = int(os.environ.get("HUEY_THREADS", "1"))


class Huey(ThreadedPeer):
    """There is no outcome to wait for."""

    open_rows = "return redis.call('LLEN', 'huey.redis.bench')"

    async def open(self) -> None:
        logging.getLogger("huey").setLevel(logging.CRITICAL)
        self._huey: Any = RedisHuey("bench", url=self.url, results=False)

        @self._huey.task()  # type: ignore[untyped-decorator]  # huey has no types
        def nothing(number: int | None = None) -> None:
            self.ran.one(number)

        self._task: Any = nothing

    async def enqueue(self, number: int | None = None) -> None:
        if number is None:
            self._task()
        else:
            self._task(number)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        consumer = self._huey.create_consumer(workers=THREADS, periodic=False, check_worker_health=False)
        consumer.start()
        try:
            yield
        finally:
            consumer.stop(graceful=False)


if __name__ == "__main__":
    run(Huey, "bench.contenders.redis.huey_")
    os._exit(0)  # its threads wait in a blocking read
