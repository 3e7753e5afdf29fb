"""What the settler should look at. Rows are marked held for a moment, so that other instances leave them alone."""

from __future__ import annotations

from typing import Any

from mainspring.model.instant import Ms
from mainspring.ports.store import Agenda, Due, DueSchedule
from mainspring.stores.redis.database import Database
from mainspring.stores.redis.rows import read_run, read_schedule
from mainspring.stores.redis.scripts import load

DUE = load("due", "common", "due")


async def due(db: Database, agenda: Agenda, limit: int, hold: Ms, ahead: Ms, now: Ms | None) -> Due:
    """The rows of one agenda, marked held."""
    db.reach("due:begin")
    wall, next_at, found = await db.write(DUE, db.now(now), agenda.value, limit, hold, ahead)
    if agenda is Agenda.GATES:
        return Due(wall, None, unparked=found)
    if agenda is Agenda.EXPIRED:
        runs = sorted(map(read_run, found), key=lambda run: (run.lease_until or 0, run.id))
        return Due(wall, next_at, runs=tuple(runs))
    rows = [_with_runs(*row) for row in found]
    if agenda is Agenda.SCHEDULES:
        rows.sort(key=lambda row: (row.schedule.next_at or 0, row.schedule.id))
    return Due(wall, next_at, tuple(rows))


def _with_runs(row: bytes, touched: int, open_: int, waiting: int, *oldest: Any) -> DueSchedule:
    return DueSchedule(read_schedule(row), open_, waiting, tuple(map(read_run, oldest)), touched)
