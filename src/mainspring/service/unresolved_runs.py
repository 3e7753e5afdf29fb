"""Unresolved runs: waiting runs whose task no live instance has, for example because the task was renamed.

Only names of tasks are compared. A run in a queue that no worker serves is not found here.
"""

from __future__ import annotations

from mainspring.engine.presence import list_instances
from mainspring.engine.unserved_tasks import served_tasks
from mainspring.model.http import HTTP_TASK
from mainspring.model.run import CLAIMABLE, Run
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Runs, Store


async def find_unresolved(store: Store, namespace: str, limit: int) -> list[Run]:
    """Return at most `limit` waiting runs of a namespace whose task no live instance has, oldest first."""
    known = served_tasks(await list_instances(store))
    waiting = Runs(ns=namespace, states=tuple(sorted(CLAIMABLE)), oldest_first=True)
    found: list[Run] = []
    async for run in iterate_rows(store, waiting, lambda run: run.id):
        if run.task not in known:
            found.append(run)
            if len(found) >= limit:
                break
    return found


async def find_missing_worker(store: Store, task: str) -> str | None:
    """Return a warning if no live instance has `task`, for a caller that has just started a run of it; else None."""
    if task in served_tasks(await list_instances(store)):
        return None
    if task == HTTP_TASK:
        return "no live instance calls HTTP agents; the run waits until one that calls them is started"
    return f"no live instance has the task {task!r}; the run waits until a program that declares it is started"
