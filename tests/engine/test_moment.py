"""A moment wakes its task in the loop's own turn for the timer, at its time and not before."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from typing import Any

import pytest

from mainspring.executors.moment import Moment

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


async def test_a_task_goes_on_at_its_moment_in_its_own_context() -> None:
    loop = asyncio.get_running_loop()
    seen: list[tuple[str, bool]] = []

    async def wait() -> None:
        WHO.set("me")
        until = loop.time() + 0.02
        await Moment(loop, 0.02)
        seen.append((WHO.get(), loop.time() >= until - 1e-3))

    await asyncio.gather(wait(), wait())
    assert seen == [("me", True)] * 2
    assert WHO.get() == "nobody"


async def test_who_is_cancelled_does_not_wait_for_the_moment() -> None:
    loop = asyncio.get_running_loop()
    woken = 0

    async def wait() -> None:
        nonlocal woken
        try:
            await Moment(loop, 60.0)
        finally:
            woken += 1

    task = loop.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await task
    assert woken == 1


async def test_who_is_cancelled_before_it_waits_does_not_wait_either() -> None:
    loop = asyncio.get_running_loop()

    async def wait() -> None:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None
        task.cancel()
        await Moment(loop, 60.0)

    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await loop.create_task(wait())
            raise AssertionError("it was cancelled")


async def test_twice_cancelled_is_woken_once() -> None:
    loop = asyncio.get_running_loop()

    async def wait() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await Moment(loop, 60.0)
        await asyncio.sleep(0)
        return "went on"

    task = loop.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    task.cancel()
    async with asyncio.timeout(5):
        assert await task == "went on"
