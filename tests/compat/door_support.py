"""What the tests of the doors share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

from mainspring import Mainspring, Schedule
from mainspring.model.run import Run
from mainspring.testing.time_travel import Travel, _take_over

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)  # a Monday

T = TypeVar("T")


async def stored(t: Travel) -> tuple[list[Schedule], list[Run]]:
    """Everything a refused call could have left behind."""
    return await t.app.schedules(), await t.runs()


@asynccontextmanager
async def virtual(app: Mainspring, start: datetime = START) -> AsyncIterator[Travel]:
    """Virtual time for an app that starts and stops its engine by itself."""
    async with _take_over(app, start) as machine:
        try:
            yield machine
        finally:
            await app.close()


async def during(t: Travel, work: Coroutine[Any, Any, T], by: str = "1d") -> T:
    """Let virtual time pass while something runs; its answer."""
    running = asyncio.ensure_future(work)
    await t.advance(by)
    if not running.done():
        running.cancel()
        raise AssertionError(f"not done after {by}")
    return running.result()
