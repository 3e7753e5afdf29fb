"""What planners write, by the shortest way: schedules move on and their fires are born, all in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.model.change import Change, Result, ScheduleAt
from mainspring.model.instant import Ms
from mainspring.stores.batch import Indexed
from mainspring.stores.postgres.births import BirthRows
from mainspring.stores.postgres.births_sql import PLAN, PLAN_COLUMNS, POSITION, bind
from mainspring.stores.postgres.database import Session
from mainspring.stores.postgres.rows import arrays, plain_text


class Plans:
    """A batch of nothing but plans: rows of `PLAN_COLUMNS`, and of births with the place of their plan."""

    def __init__(self, changes: Sequence[Change], plans: list[Any], births: list[Any]) -> None:
        self._changes = changes
        self._plans = plans
        self._births = births

    async def write(self, session: Session, results: list[Result], now: Ms | None) -> tuple[Ms, Indexed]:
        """Write those whose schedule is where it was seen; the time, and the changes that were refused."""
        if self._births:
            sql, parameters = bind(self._births, (), self._plans)
        else:
            sql, parameters = PLAN, arrays(self._plans, len(PLAN_COLUMNS))
        row = await session.row(sql, now, *parameters)
        held = set(row["held"] or ())
        refused: Indexed = []
        for index, change in enumerate(self._changes):
            guard = change.guard
            if index in held and isinstance(guard, ScheduleAt):
                results[index] = Result("accepted", guard.n)
            else:
                refused.append((index, change))
        return row["now"], refused


def plans(changes: Sequence[Change]) -> Plans | None:
    """The batch, if each change moves a schedule of its own and brings nothing but fresh runs of it."""
    found: list[Any] = []
    born = BirthRows()
    ids: set[str] = set()
    for index, change in enumerate(changes):
        guard, schedule = change.guard, change.schedule
        if type(guard) is not ScheduleAt or schedule is None or schedule.id != guard.id or guard.id in ids:
            return None
        if change.run is not None or change.spans or change.bodies or change.touches or change.releases or change.gates:
            return None
        if (schedule.revision, schedule.n) != (guard.revision, guard.n) or len(change.runs) != len(change.events):
            return None
        if any(run.schedule_id != guard.id for run in change.runs):
            return None
        first = len(born.rows)
        if not born.add(change, change.runs):
            return None
        for row in born.rows[first:]:
            row.append(index)
        ids.add(guard.id)
        position = (plain_text(value) if isinstance(value, str) else value for value in _position(schedule))
        found.append((index, guard.id, *position, guard.revision, guard.cursor, guard.n, guard.touched))
    found.sort(key=lambda row: row[1])  # rows are locked in the order of ids
    return Plans(changes, found, born.rows)


def _position(schedule: Any) -> tuple[Any, ...]:
    return tuple(getattr(schedule, name) for name in POSITION)
