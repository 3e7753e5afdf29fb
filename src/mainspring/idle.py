"""When is an instance idle: nothing runs, nothing is due, nothing is between two attempts."""

from __future__ import annotations

import asyncio

from mainspring.engine.runtime import Runtime
from mainspring.model.run import State
from mainspring.ports.store import Runs, Schedules


async def is_idle(runtime: Runtime) -> bool:
    """True when there is nothing to do now that this instance could do."""
    if runtime.batcher.waiting or (runtime.worker is not None and runtime.worker.running):
        return False
    now = runtime.clock.now()
    for states, before in (((State.RUNNING, State.RETRYING), None), ((State.WAITING,), now)):
        for task in runtime.handlers:
            if await runtime.store.find(Runs(task=task, states=states, due_before=before, limit=1)):
                return False
    due = await runtime.store.find(Schedules(states=("active",), limit=10_000))
    return not any(row.next_at is not None and row.next_at <= now for row in due)


async def until_idle(runtime: Runtime) -> None:
    """Return at the first moment of idleness."""
    while not await is_idle(runtime):  # noqa: ASYNC110 - idleness is a state of the store, nobody signals it
        await asyncio.sleep(0.02)
