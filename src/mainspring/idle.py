"""When is an instance idle: nothing runs, nothing is due, nothing is between two attempts."""

from __future__ import annotations

import asyncio

from mainspring.engine.runtime import Runtime
from mainspring.model.http import HTTP_TASK
from mainspring.model.instant import Ms
from mainspring.model.run import State
from mainspring.paging import all_rows
from mainspring.ports.store import Runs, Schedules
from mainspring.rules.lanes import lane_of


async def is_idle(runtime: Runtime) -> bool:
    """True when there is nothing to do now that this instance could do."""
    if runtime.batcher.waiting or any(worker.running for worker in runtime.workers()):
        return False
    # Others work between two questions, so held runs are asked for twice: one that goes back is seen by the
    # first or due by the store's now, one that is taken is seen as waiting or by the second.
    if await _any(runtime, (State.RUNNING, State.RETRYING), None):
        return False
    now = await runtime.time.ask()
    if await _any(runtime, (State.WAITING,), now) or await _any(runtime, (State.RUNNING, State.RETRYING), None):
        return False
    return not await runtime.store.find(Schedules(states=("active",), due_before=now, limit=1))


async def _any(runtime: Runtime, states: tuple[State, ...], before: Ms | None) -> bool:
    """True when there is such a run that this instance could work on."""
    lanes = {lane_of(runtime.settings.namespace, queue) for queue in runtime.settings.queues}
    for task in (*runtime.handlers, *(() if runtime.agents is None else (HTTP_TASK,))):
        query = Runs(ns=runtime.settings.namespace, task=task, states=states, due_before=before)
        async for run in all_rows(runtime.store, query, lambda run: run.id):
            if run.lane in lanes:
                return True
    return False


async def until_idle(runtime: Runtime) -> None:
    """Return at the first moment of idleness."""
    while not await is_idle(runtime):  # noqa: ASYNC110 - idleness is a state of the store, nobody signals it
        await asyncio.sleep(0.02)
