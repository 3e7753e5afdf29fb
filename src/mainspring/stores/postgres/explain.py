"""Why guards did not hold."""

from __future__ import annotations

from typing import Any

from mainspring.model.change import Result, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.stores.batch import Indexed
from mainspring.stores.postgres import apply_sql as sql
from mainspring.stores.postgres.database import Session
from mainspring.stores.postgres.rows import arrays, read_run, read_schedule


async def explain(session: Session, lost: Indexed, results: list[Result]) -> None:
    """Answer each with the row as it is, and whether this very change wrote it before."""
    runs: list[Any] = []
    schedules: list[Any] = []
    wrote: list[Any] = []
    for index, change in lost:
        guard = change.guard
        wrote += [(index, run.id, change.id) for run in change.runs]
        if isinstance(guard, RunAbsent):
            run = change.run
            assert run is not None
            runs.append((index, guard.id, run.ns, guard.unique_key, change.id, run.schedule_id, run.fire_key))
        elif isinstance(guard, RunLease | RunAt):
            runs.append((index, guard.id, None, None, change.id, None, None))
        elif isinstance(guard, ScheduleAbsent):
            schedules.append((index, guard.id, guard.ns, guard.name, change.id))
        elif isinstance(guard, ScheduleAt):
            schedules.append((index, guard.id, None, None, change.id))
    inserted = {row["idx"] for row in await session.fetch(sql.WROTE, *arrays(wrote, 3))} if wrote else set()
    found: list[tuple[int, bool, Run | Schedule]] = []
    if runs:
        rows = await session.fetch(sql.REFUSED_RUNS, *arrays(runs, len(sql.REFUSED_COLUMNS)))
        found += [(row["idx"], row["repeated"], read_run(row)) for row in rows]
    if schedules:
        rows = await session.fetch(sql.REFUSED_SCHEDULES, *arrays(schedules, len(sql.REFUSED_SCHEDULE_COLUMNS)))
        found += [(row["idx"], row["repeated"], read_schedule(row)) for row in rows]
    for index, repeated, current in found:
        results[index] = Result("repeated" if repeated or index in inserted else "refused", current.n, current)
