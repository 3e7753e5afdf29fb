"""Stored rows of schedules and runs, for tests that check more than the views that programs get."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, overload

from mainspring import Mainspring
from mainspring import Run as RunView
from mainspring import Schedule as ScheduleView
from mainspring.app.internals import queries_of
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule


@overload
async def stored(ms: Mainspring, view: Awaitable[ScheduleView]) -> Schedule: ...
@overload
async def stored(ms: Mainspring, view: Awaitable[RunView]) -> Run: ...
@overload
async def stored(ms: Mainspring, view: Awaitable[list[ScheduleView]]) -> list[Schedule]: ...
@overload
async def stored(ms: Mainspring, view: Awaitable[list[RunView]]) -> list[Run]: ...
async def stored(ms: Mainspring, view: Awaitable[Any]) -> Any:
    """Return the present rows of the views that a call returns: `await stored(ms, ms.get("nightly"))`."""
    found = await view
    if isinstance(found, list):
        return [await _row_of(ms, one) for one in found]
    return await _row_of(ms, found)


async def _row_of(ms: Mainspring, view: ScheduleView | RunView) -> Schedule | Run:
    queries = queries_of(ms)
    return await (queries.find_run(view.id) if isinstance(view, RunView) else queries.find_schedule(view.id))
