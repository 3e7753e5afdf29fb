"""Unresolved runs: waiting runs whose task no live instance has, for example because the task was renamed.

Only names of tasks are compared. A run in a queue that no worker serves is not found here.
"""

from __future__ import annotations

from mainspring.engine.presence import list_instances
from mainspring.model.run import CLAIMABLE, Run
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Runs, Store


async def find_unresolved(store: Store, namespace: str, limit: int) -> list[Run]:
    """Return at most `limit` waiting runs of a namespace whose task no live instance has, oldest first."""
    known = {task for lease, instance in await list_instances(store) if lease.live for task in instance.tasks}
    waiting = Runs(ns=namespace, states=tuple(sorted(CLAIMABLE)), oldest_first=True)
    found: list[Run] = []
    async for run in iterate_rows(store, waiting, lambda run: run.id):
        if run.task not in known:
            found.append(run)
            if len(found) >= limit:
                break
    return found
