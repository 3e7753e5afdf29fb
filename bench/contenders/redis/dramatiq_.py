"""dramatiq: its Redis broker and eight worker threads, its default."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.contenders.redis.peer import ThreadedPeer, run

THREADS = int(os.environ.get("DRAMATIQ_THREADS", "8"))


class Dramatiq(ThreadedPeer):
    """A message is taken out of its hash when it is acknowledged."""

    open_rows = "return redis.call('LLEN', 'dramatiq:default') + redis.call('HLEN', 'dramatiq:default.msgs')"

    async def open(self) -> None:
        logging.getLogger("dramatiq").setLevel(logging.CRITICAL)
        self._broker: Any = RedisBroker(url=self.url)

        @dramatiq.actor(broker=self._broker, time_limit=float("inf"))  # type: ignore[untyped-decorator,unused-ignore]  # as for all
        def nothing(number: int | None = None) -> None:
            self.ran.one(number)

        self._actor: Any = nothing

    async def enqueue(self, number: int | None = None) -> None:
        if number is None:
            self._actor.send()
        else:
            self._actor.send(number)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        worker = dramatiq.Worker(self._broker, worker_threads=THREADS)
        worker.start()
        try:
            yield
        finally:
            worker.stop()

    async def close(self) -> None:
        self._broker.close()


if __name__ == "__main__":
    run(Dramatiq, "bench.contenders.redis.dramatiq_")
