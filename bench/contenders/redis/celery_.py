"""Celery on Redis: `acks_late`, so that a run is not lost with its worker; the pool of its solo worker, no results."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from celery import Celery

from bench.contenders.redis.peer import ThreadedPeer, in_thread, run

#: `threads` was slower; `prefork` is a process more.
POOL = os.environ.get("CELERY_POOL", "solo")
PREFETCH = 100


class CeleryPeer(ThreadedPeer):
    """Unacknowledged messages are in a hash of their own."""

    open_rows = "return redis.call('LLEN', 'celery') + redis.call('HLEN', 'unacked')"

    async def open(self) -> None:
        logging.getLogger("celery").setLevel(logging.CRITICAL)
        self._app: Any = Celery("bench", broker=self.url)
        self._app.conf.update(
            task_acks_late=True,
            task_ignore_result=True,
            worker_prefetch_multiplier=PREFETCH,
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
        )

        @self._app.task(name="nothing")  # type: ignore[untyped-decorator,unused-ignore]  # as for all peers
        def nothing(number: int | None = None) -> None:
            self.ran.one(number)

        self._task: Any = nothing

    async def enqueue(self, number: int | None = None) -> None:
        if number is None:
            self._task.delay()
        else:
            self._task.delay(number)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        worker = self._app.WorkController(
            app=self._app,
            pool_cls=POOL,
            concurrency=8 if POOL == "threads" else 1,
            without_heartbeat=True,
            without_mingle=True,
            without_gossip=True,
        )
        async with in_thread(worker.start, worker.stop):
            yield

    async def close(self) -> None:
        self._app.close()


if __name__ == "__main__":
    run(CeleryPeer, "bench.contenders.redis.celery_")
    os._exit(0)  # its worker's thread may be in a blocking read
