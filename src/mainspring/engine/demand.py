"""How much work waits for a pool of workers, and how much they hold: a bounded look."""

from __future__ import annotations

from collections.abc import Collection

from mainspring.engine.presence import instances
from mainspring.engine.runtime import Runtime
from mainspring.model.run import CLAIMABLE
from mainspring.paging import all_rows
from mainspring.ports.store import Runs
from mainspring.rules.lanes import lane_of
from mainspring.rules.pool import Demand

#: Rows looked at; beyond that more or less backlog makes no difference.
LOOK = 5_000
PAGE = 500


async def demand(runtime: Runtime, host: str, pids: Collection[int], enough: int) -> Demand:
    """Runs that these workers could take now, up to `enough`, and what they said they hold at their last heartbeat."""
    settings, now = runtime.settings, runtime.time.now()
    lanes = {lane_of(settings.namespace, queue) for queue in settings.queues}
    backlog = looked = 0
    query = Runs(ns=settings.namespace, states=tuple(sorted(CLAIMABLE)), due_before=now, oldest_first=True, limit=PAGE)
    async for run in all_rows(runtime.store, query, lambda run: run.id):
        looked += 1
        backlog += run.parked_on is None and run.lane in lanes and run.task in runtime.handlers
        if backlog >= enough or looked >= LOOK:
            break
    running = sum(
        one.running
        for lease, one in await instances(runtime.store)
        if lease.live and one.host == host and one.pid in pids
    )
    return Demand(backlog, running)
