"""When is an instance idle: nothing runs, nothing is due, nothing is between two attempts."""

from __future__ import annotations

import asyncio

from mainspring.engine.runtime import Runtime
from mainspring.model.run import State
from mainspring.paging import all_rows
from mainspring.ports.store import Runs, Schedules
from mainspring.rules.lanes import lane_of


async def is_idle(runtime: Runtime) -> bool:
    """True when there is nothing to do now that this instance could do."""
    if runtime.batcher.waiting or (runtime.worker is not None and runtime.worker.running):
        return False
    now = runtime.time.now()
    lanes = {lane_of(runtime.settings.namespace, queue) for queue in runtime.settings.queues}
    for states, before in (((State.RUNNING, State.RETRYING), None), ((State.WAITING,), now)):
        for task in runtime.handlers:
            query = Runs(ns=runtime.settings.namespace, task=task, states=states, due_before=before)
            async for run in all_rows(runtime.store, query, lambda run: run.id):
                if run.lane in lanes:
                    return False
    return not await runtime.store.find(Schedules(states=("active",), due_before=now, limit=1))


async def until_idle(runtime: Runtime) -> None:
    """Return at the first moment of idleness."""
    while not await is_idle(runtime):  # noqa: ASYNC110 - idleness is a state of the store, nobody signals it
        await asyncio.sleep(0.02)
