"""A timer future wakes its task in the turn of the loop in which the timer fires, at its time and not before."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from typing import Any

import pytest

from mainspring.aio.timer import TimerFuture

NAME: ContextVar[str] = ContextVar("NAME", default="unset")


async def test_a_task_resumes_at_its_time_in_its_own_context() -> None:
    loop = asyncio.get_running_loop()
    seen: list[tuple[str, bool]] = []

    async def wait() -> None:
        NAME.set("me")
        until = loop.time() + 0.02
        await TimerFuture(loop, 0.02)
        seen.append((NAME.get(), loop.time() >= until - 1e-3))

    await asyncio.gather(wait(), wait())
    assert seen == [("me", True)] * 2
    assert NAME.get() == "unset"


async def test_a_cancelled_task_does_not_wait_for_the_timer() -> None:
    loop = asyncio.get_running_loop()
    woken = 0

    async def wait() -> None:
        nonlocal woken
        try:
            await TimerFuture(loop, 60.0)
        finally:
            woken += 1

    task = loop.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await task
    assert woken == 1


async def test_a_task_that_is_cancelled_before_it_waits_does_not_wait() -> None:
    loop = asyncio.get_running_loop()

    async def wait() -> None:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None
        task.cancel()
        await TimerFuture(loop, 60.0)

    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await loop.create_task(wait())
            raise AssertionError("it was cancelled")


async def test_a_task_that_is_cancelled_twice_is_woken_once() -> None:
    loop = asyncio.get_running_loop()

    async def wait() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await TimerFuture(loop, 60.0)
        await asyncio.sleep(0)
        return "went on"

    task = loop.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    task.cancel()
    async with asyncio.timeout(5):
        assert await task == "went on"
