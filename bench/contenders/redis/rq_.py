"""RQ: its `SimpleWorker`, which does not fork for every job; results are not kept."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker
from rq.timeouts import TimerDeathPenalty

from bench.contenders.redis.peer import ThreadedPeer, in_thread, run

_peer: Rq


def nothing(number: int | None = None) -> None:
    """Found by its import path, so it cannot be a closure."""
    _peer.ran.one(number)


class _Worker(SimpleWorker):  # type: ignore[misc,unused-ignore]  # as for all peers
    death_penalty_class = TimerDeathPenalty

    def _install_signal_handlers(self) -> None:
        """It does not run on the main thread."""


class Rq(ThreadedPeer):
    """A job's hash is deleted when it has succeeded."""

    open_rows = "return redis.call('LLEN', 'rq:queue:default') + redis.call('ZCARD', 'rq:wip:default')"

    async def open(self) -> None:
        global _peer
        _peer = self
        logging.getLogger("rq").setLevel(logging.CRITICAL)
        self._connection = Redis.from_url(self.url)
        self._queue: Any = Queue(connection=self._connection)

    async def enqueue(self, number: int | None = None) -> None:
        words = () if number is None else (number,)
        self._queue.enqueue("bench.contenders.redis.rq_.nothing", *words, job_timeout=-1, result_ttl=0)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        worker: Any = _Worker([self._queue], connection=Redis.from_url(self.url))
        async with in_thread(
            lambda: worker.work(logging_level="CRITICAL"), lambda: setattr(worker, "_stop_requested", True)
        ):
            yield


if __name__ == "__main__":
    import sys

    # jobs name this module, which must be this one
    sys.modules["bench.contenders.redis.rq_"] = sys.modules["__main__"]
    run(Rq, "bench.contenders.redis.rq_")
    os._exit(0)  # its worker's thread may be in a blocking read
