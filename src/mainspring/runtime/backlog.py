"""The backlog, for autoscaling: how many runs wait for a pool of workers, and how many the workers hold."""

from __future__ import annotations

from collections.abc import Collection

from mainspring.engine.presence import list_instances
from mainspring.model.run import CLAIMABLE
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Runs
from mainspring.rules.autoscale import Demand
from mainspring.rules.lanes import lane_of
from mainspring.runtime.runtime import Runtime

#: The most runs that are read. A backlog that is longer makes no difference to the size of the pool.
MAX_BACKLOG_ROWS = 5_000
#: Runs read in one page.
BACKLOG_PAGE_ROWS = 500


async def measure_demand(runtime: Runtime, host: str, pids: Collection[int], enough: int) -> Demand:
    """Return how many runs a worker of this program could claim now, and how many the workers of the pool hold.

    Counting stops at `enough` claimable runs, or after `MAX_BACKLOG_ROWS` rows. The workers of the pool are the
    processes `pids` on the machine `host`. Their presence rows say how many runs they hold, as of their last
    heartbeats.
    """
    settings, now = runtime.settings, runtime.time.now()
    lanes = {lane_of(settings.namespace, queue) for queue in settings.queues}
    backlog, rows, at_least = 0, 0, False
    query = Runs(
        ns=settings.namespace,
        states=tuple(sorted(CLAIMABLE)),
        due_before=now,
        oldest_first=True,
        limit=BACKLOG_PAGE_ROWS,
    )
    async for run in iterate_rows(runtime.store, query, lambda run: run.id):
        rows += 1
        backlog += run.parked_on is None and run.lane in lanes and run.task in runtime.handlers
        if backlog >= enough or rows >= MAX_BACKLOG_ROWS:
            at_least = True
            break
    running = sum(
        one.running
        for lease, one in await list_instances(runtime.store)
        if lease.live and one.host == host and one.pid in pids
    )
    return Demand(backlog, running, at_least)
