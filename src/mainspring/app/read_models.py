"""Read models: turns stored rows into the `Schedule` and `Run` that programs get, with what other rows add to them.

Names, payloads and last runs of several rows are read together: the number of queries does not grow with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from mainspring.app.engine_host import EngineHost
from mainspring.app.run_view import Run, view_run
from mainspring.app.schedule_view import Schedule, view_schedule
from mainspring.model.run import Run as RunRow
from mainspring.model.schedule import Schedule as ScheduleRow
from mainspring.ports.store import Bodies, LastRuns, Query, Schedules, Store
from mainspring.runtime.runtime import Runtime

T = TypeVar("T")

#: The most ids in one query.
MAX_IDS_PER_QUERY = 1_000


class ReadModels:
    """Makes views of rows: the schedules and runs that the methods of `Mainspring` return."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    async def schedule(self, row: ScheduleRow) -> Schedule:
        """Return the view of one stored schedule."""
        return (await self.schedules([row]))[0]

    async def schedules(self, rows: Sequence[ScheduleRow]) -> list[Schedule]:
        """Return the views of stored schedules, in their order."""
        return await self._host.call(lambda runtime: _view_schedules(runtime, rows)) if rows else []

    async def run(self, row: RunRow) -> Run:
        """Return the view of one stored run."""
        return (await self.runs([row]))[0]

    async def runs(self, rows: Sequence[RunRow]) -> list[Run]:
        """Return the views of stored runs, in their order."""
        return await self._host.call(lambda runtime: _view_runs(runtime, rows)) if rows else []


async def _view_schedules(runtime: Runtime, rows: Sequence[ScheduleRow]) -> list[Schedule]:
    store = runtime.store
    last_runs = await _find(store, (row.id for row in rows), lambda ids: LastRuns(ids=ids))
    newest = {run.schedule_id: run for run in last_runs}
    bodies = await _find_bodies(store, [*(row.spec.body for row in rows), *(run.body for run in newest.values())])
    views: list[Schedule] = []
    for row in rows:
        run = newest.get(row.id)
        last_run = None if run is None else view_run(run, bodies.get(run.body or ""), row.name)
        views.append(view_schedule(row, bodies.get(row.spec.body or ""), last_run))
    return views


async def _view_runs(runtime: Runtime, rows: Sequence[RunRow]) -> list[Run]:
    store = runtime.store
    of_rows = (row.schedule_id for row in rows)
    schedules = await _find(store, of_rows, lambda ids: Schedules(ids=ids, limit=len(ids)))
    names = {schedule.id: schedule.name for schedule in schedules}
    bodies = await _find_bodies(store, (row.body for row in rows))
    return [view_run(row, bodies.get(row.body or ""), names.get(row.schedule_id or "")) for row in rows]


async def _find_bodies(store: Store, ids: Iterable[str | None]) -> dict[str, str]:
    return {body.id: body.data for body in await _find(store, ids, lambda some: Bodies(ids=some))}


async def _find(store: Store, ids: Iterable[str | None], make_query: Callable[[tuple[str, ...]], Query[T]]) -> list[T]:
    """Return the rows that the queries of `make_query` select by these ids; None among the ids is ignored."""
    wanted = sorted({one for one in ids if one is not None})
    found: list[T] = []
    for start in range(0, len(wanted), MAX_IDS_PER_QUERY):
        found += await store.find(make_query(tuple(wanted[start : start + MAX_IDS_PER_QUERY])))
    return found
