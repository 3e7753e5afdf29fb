"""The store's method `due`: return the due rows of an agenda, held for a moment, so that other instances skip them."""

from __future__ import annotations

from typing import Any

from mainspring.backends.redis.database import Database
from mainspring.backends.redis.rows import read_run, read_schedule
from mainspring.backends.redis.scripts import load
from mainspring.model.instant import Ms
from mainspring.ports.store import Agenda, Due, DueSchedule

DUE = load("due", "common", "due")


async def due(db: Database, agenda: Agenda, limit: int, hold: Ms, ahead: Ms, now: Ms | None) -> Due:
    """Return up to `limit` due rows of one agenda, and hold them for `hold` milliseconds.

    Schedules that fall due in the next `ahead` milliseconds count as due, and are held until their time. For the agenda
    GATES, unpark up to `limit` runs instead, and return their number. The answer also has the instant at which to ask
    again, None if it is not known. With a limit of 0, hold nothing and return only the store's time. `now`: the instant
    of a test; None: the server's time.
    """
    db.reach("due:begin")
    store_now, next_at, found = await db.run_write(DUE, db.now(now), agenda.value, limit, hold, ahead)
    if agenda is Agenda.GATES:
        return Due(store_now, None, unparked=found)
    if agenda is Agenda.EXPIRED:
        runs = sorted(map(read_run, found), key=lambda run: (run.lease_until or 0, run.id))
        return Due(store_now, next_at, runs=tuple(runs))
    rows = [_parse_due_schedule(*row) for row in found]
    if agenda is Agenda.SCHEDULES:
        rows.sort(key=lambda row: (row.schedule.next_at or 0, row.schedule.id))
    return Due(store_now, next_at, tuple(rows))


def _parse_due_schedule(row: bytes, touched: int, open_runs: int, waiting: int, *oldest: Any) -> DueSchedule:
    """Return a due schedule from the values of an item in the answer of lua/due.lua.

    `row`: the schedule's row. `touched`: its count of touches. `open_runs`: the number of its open runs. `waiting`: how
    many of these are not running. `oldest`: the rows of up to two of the oldest.
    """
    return DueSchedule(read_schedule(row), open_runs, waiting, tuple(map(read_run, oldest)), touched)
