"""Idleness: an instance is idle if no schedule is due and no run that it could execute is due, running or retrying."""

from __future__ import annotations

import asyncio

from mainspring.model.instant import Ms
from mainspring.model.run import State
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Runs, Schedules
from mainspring.rules.lanes import lane_of
from mainspring.runtime.lingering import EXIT_GRACE_MS
from mainspring.runtime.runtime import Runtime


async def is_idle(runtime: Runtime) -> bool:
    """Return True if no schedule is due and no run of this instance's tasks and queues is due, running or retrying.

    Runs that other instances hold count as running. While changes of this instance wait for a commit, or its workers
    hold runs, return False.
    """
    if runtime.batcher.waiting or runtime.workers.running:
        return False
    # Other instances work between two queries, so running runs are queried twice, before and after the waiting ones. A
    # run that is handed back in between is found by the first query, or waits and is due by the store's time. A run
    # that is claimed in between is found waiting, or by the last query.
    if await _has_run(runtime, (State.RUNNING, State.RETRYING), None):
        return False
    now = await runtime.time.read()
    soon = now + EXIT_GRACE_MS  # a process that ended just now handed its runs back for this moment
    if await _has_run(runtime, (State.WAITING,), soon):
        return False
    if await _has_run(runtime, (State.RUNNING, State.RETRYING), None):
        return False
    return not await runtime.store.find(Schedules(states=("active",), due_before=now, limit=1))


async def _has_run(runtime: Runtime, states: tuple[State, ...], before: Ms | None) -> bool:
    """Return True if a run of this instance's tasks and queues is in one of `states` and due at `before` or earlier.

    `before` None: whenever the run is due.
    """
    lanes = {lane_of(runtime.settings.namespace, queue) for queue in runtime.settings.queues}
    for task in runtime.workers.tasks:
        query = Runs(ns=runtime.settings.namespace, task=task, states=states, due_before=before)
        async for run in iterate_rows(runtime.store, query, lambda run: run.id):
            if run.lane in lanes:
                return True
    return False


async def until_idle(runtime: Runtime) -> None:
    """Wait until the instance is idle, querying the store every 20 ms."""
    while not await is_idle(runtime):  # noqa: ASYNC110 - idleness is a state of the store, and nothing signals it
        await asyncio.sleep(0.02)
