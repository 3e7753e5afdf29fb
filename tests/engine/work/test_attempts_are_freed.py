"""What an attempt was made of goes with its end, without the collector having to find it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

from mainspring import Mainspring
from mainspring.executors.coroutine import CoroutineExecutor
from mainspring.model.outcome import Outcome, Succeeded
from mainspring.model.run import Run
from mainspring.ports.executor import Attempt, HeldRun
from mainspring.testing import VirtualClock


async def test_a_coroutines_task_is_gone_when_its_attempt_is() -> None:
    ms, clock = Mainspring("memory://"), VirtualClock(0)
    tasks: list[weakref.ref[asyncio.Task[Any]]] = []
    ended: list[Outcome] = []

    @ms.task(timeout=None)
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(weakref.ref(task))

    executor = CoroutineExecutor(asyncio.get_running_loop(), clock, lambda attempt, outcome: ended.append(outcome))
    gc.disable()
    try:
        for number in range(3):
            attempt = Attempt(Run(id=f"r{number}", task="work"), None, work.handler(), None)
            executor.start([HeldRun(attempt, clock.boot() + 1)])
        for _ in range(5):
            await asyncio.sleep(0)
        assert ended == [Succeeded()] * 3
        assert [task() for task in tasks] == [None] * 3
    finally:
        gc.enable()
