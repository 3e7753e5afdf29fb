"""Idleness: an instance is idle if no schedule is due, and no run that it could execute is due, running or retrying."""

from __future__ import annotations

import asyncio

from mainspring.model.instant import Ms
from mainspring.model.run import State
from mainspring.ports.paging import iterate_rows
from mainspring.ports.store import Runs, Schedules
from mainspring.rules.lanes import lane_of
from mainspring.runtime.runtime import Runtime


async def is_idle(runtime: Runtime) -> bool:
    """Return True if no schedule is due, and no run of this instance's tasks and queues is due, running or retrying.

    Runs that other instances hold count as running. Returns False also while changes wait for a commit here.
    """
    if runtime.batcher.waiting or runtime.workers.running:
        return False
    # Other instances work between two queries, so held runs are queried twice: a run that goes back is found by the
    # first query or is due by the store's time, and a run that is claimed is found waiting or by the second query.
    if await _any(runtime, (State.RUNNING, State.RETRYING), None):
        return False
    now = await runtime.time.read()
    if await _any(runtime, (State.WAITING,), now) or await _any(runtime, (State.RUNNING, State.RETRYING), None):
        return False
    return not await runtime.store.find(Schedules(states=("active",), due_before=now, limit=1))


async def _any(runtime: Runtime, states: tuple[State, ...], before: Ms | None) -> bool:
    """Return True if a run of this instance's tasks and queues is in one of these states and due by `before`.

    `before` None: due at any time.
    """
    lanes = {lane_of(runtime.settings.namespace, queue) for queue in runtime.settings.queues}
    for task in runtime.workers.tasks:
        query = Runs(ns=runtime.settings.namespace, task=task, states=states, due_before=before)
        async for run in iterate_rows(runtime.store, query, lambda run: run.id):
            if run.lane in lanes:
                return True
    return False


async def until_idle(runtime: Runtime) -> None:
    """Return when the instance is idle; ask the store every 20 ms."""
    while not await is_idle(runtime):  # noqa: ASYNC110 - idleness is a state of the store, and nothing signals it
        await asyncio.sleep(0.02)
