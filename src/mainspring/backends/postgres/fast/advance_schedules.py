"""Fast path of `apply` for the settler: one statement advances schedules and inserts the runs of their fires.

To *advance* a schedule is to set its planning position: its state, its cursor, its next fire and the like, but not its
definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.backends.change_batches import IndexedChanges
from mainspring.backends.postgres.database import Session
from mainspring.backends.postgres.fast.insert_runs import RunInsertRows
from mainspring.backends.postgres.fast.insert_runs_sql import ADVANCE_COLUMNS, ADVANCE_SCHEDULES, POSITION_FIELDS, bind
from mainspring.backends.postgres.rows import column_arrays, storable_text
from mainspring.model.change import Change, Result, ScheduleAt
from mainspring.model.instant import Ms


class ScheduleAdvances:
    """A batch in which each change advances a schedule, ready to be written.

    `changes`: the batch. `advances`: rows of ADVANCE_COLUMNS. `runs`: rows of INSERTED_RUN_COLUMNS for the runs of the
    fires; after these columns, each row has the index of its schedule's change.
    """

    def __init__(self, changes: Sequence[Change], advances: list[Any], runs: list[Any]) -> None:
        self._changes = changes
        self._advances = advances
        self._runs = runs

    async def write(self, session: Session, results: list[Result], now: Ms | None) -> tuple[Ms, IndexedChanges]:
        """Write the changes whose schedule is as the settler read it, and set their results.

        Returns the instant stamped on the events, and the refused changes, whose results the caller sets. `now`: the
        instant of a test; None: the server's time.
        """
        if self._runs:
            sql, parameters = bind(self._runs, (), self._advances)
        else:
            sql, parameters = ADVANCE_SCHEDULES, column_arrays(self._advances, len(ADVANCE_COLUMNS))
        row = await session.row(sql, now, *parameters)
        held = set(row["held"] or ())
        refused: IndexedChanges = []
        for index, change in enumerate(self._changes):
            guard = change.guard
            if index in held and isinstance(guard, ScheduleAt):
                results[index] = Result("accepted", guard.n)
            else:
                refused.append((index, change))
        return row["now"], refused


def match_schedule_advances(changes: Sequence[Change]) -> ScheduleAdvances | None:
    """Return the batch, ready to be written, if each change only advances a schedule and inserts fresh runs of it.

    A fresh run was never started, cancelled, parked or ended. Return None for any other batch. Also return None if two
    changes advance the same schedule, or if a change finishes its schedule.
    """
    advances: list[Any] = []
    runs = RunInsertRows()
    ids: set[str] = set()
    for index, change in enumerate(changes):
        guard, schedule = change.guard, change.schedule
        if change.kind != "plan" or not isinstance(guard, ScheduleAt) or schedule is None or guard.id in ids:
            return None
        if schedule.state == "finished":
            return None
        first = len(runs.rows)
        if not runs.add(change, change.runs):
            return None
        for row in runs.rows[first:]:
            row.append(index)
        ids.add(guard.id)
        position = (storable_text(value) if isinstance(value, str) else value for value in _position(schedule))
        advances.append((index, guard.id, *position, guard.revision, guard.cursor, guard.n, guard.touched))
    advances.sort(key=lambda row: row[1])  # rows are locked in the order of ids
    return ScheduleAdvances(changes, advances, runs.rows)


def _position(schedule: Any) -> tuple[Any, ...]:
    """Return the values of a schedule's planning position, in the order of POSITION_FIELDS."""
    return tuple(getattr(schedule, name) for name in POSITION_FIELDS)
