"""Results of refused changes: the row that refused each change, and `repeated` if the change is stored already."""

from __future__ import annotations

from typing import Any

from mainspring.backends.change_batches import IndexedChanges
from mainspring.backends.postgres import apply_sql as sql
from mainspring.backends.postgres.database import Session
from mainspring.backends.postgres.rows import column_arrays, read_run, read_schedule
from mainspring.model.change import Change, Result, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule


async def explain_refusals(session: Session, refused: IndexedChanges, results: list[Result]) -> None:
    """Set the result of each refused change: its status, and the row that refused the change, as it is now.

    The status is `repeated` if the change is stored already, else `refused`. If no row refused the change, its result
    stays as the caller set it. `refused`: the changes with their indexes in `results`.
    """
    inserted = await find_inserted(session, refused)
    for index, repeated, current in await _find_current(session, refused):
        results[index] = Result("repeated" if repeated or index in inserted else "refused", current.n, current)


async def find_inserted(session: Session, changes: IndexedChanges) -> set[int]:
    """Return the indexes of the changes that are stored already, judged by the runs that they insert.

    Such a change has a run in `Change.runs`, and the log has an event of this run with the change's id.
    """
    inserts = [(index, run.id, change.id) for index, change in changes for run in change.runs]
    if not inserts:
        return set()
    return {row["idx"] for row in await session.fetch(sql.INSERTED_BY_CHANGE, *column_arrays(inserts, 3))}


async def _find_current(session: Session, refused: IndexedChanges) -> list[tuple[int, bool, Run | Schedule]]:
    """Return for each change that a row refused: its index, whether it wrote an event of the row, and the row.

    A change that wrote an event of the row is stored already. Changes without a guard, and changes whose row is gone,
    are left out.
    """
    runs = [row for index, change in refused if (row := _guarded_run(index, change)) is not None]
    schedules = [row for index, change in refused if (row := _guarded_schedule(index, change)) is not None]
    found: list[tuple[int, bool, Run | Schedule]] = []
    if runs:
        rows = await session.fetch(sql.REFUSED_RUNS, *column_arrays(runs, len(sql.REFUSED_RUN_COLUMNS)))
        found += [(row["idx"], row["repeated"], read_run(row)) for row in rows]
    if schedules:
        rows = await session.fetch(sql.REFUSED_SCHEDULES, *column_arrays(schedules, len(sql.REFUSED_SCHEDULE_COLUMNS)))
        found += [(row["idx"], row["repeated"], read_schedule(row)) for row in rows]
    return found


def _guarded_run(index: int, change: Change) -> tuple[Any, ...] | None:
    """Return a row of REFUSED_RUN_COLUMNS for a change that guards a run, None for any other change.

    `index`: the index of the change in the batch.
    """
    guard = change.guard
    if isinstance(guard, RunAbsent):
        run = change.run
        assert run is not None
        return index, guard.id, run.ns, guard.unique_key, change.id, run.schedule_id, run.fire_key
    if isinstance(guard, RunLease | RunAt):
        return index, guard.id, None, None, change.id, None, None
    return None


def _guarded_schedule(index: int, change: Change) -> tuple[Any, ...] | None:
    """Return a row of REFUSED_SCHEDULE_COLUMNS for a change that guards a schedule, None for any other change.

    `index`: the index of the change in the batch.
    """
    guard = change.guard
    if isinstance(guard, ScheduleAbsent):
        return index, guard.id, guard.ns, guard.name, change.id
    if isinstance(guard, ScheduleAt):
        return index, guard.id, None, None, change.id
    return None
