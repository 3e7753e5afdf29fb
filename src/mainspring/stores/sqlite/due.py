"""What the settler should look at. Holds are kept in this process only: they save work and guard nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.model.instant import Ms
from mainspring.ports.store import Agenda, Due, DueSchedule
from mainspring.stores.sqlite.claim import unpark
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.rows import RUN_JSON, SCHEDULE_JSON, pack, read_runs

_PLANS = "s.next_at IS NOT NULL AND s.state NOT IN ('finished', 'deleted')"
_NOT_HELD = "s.id NOT IN (SELECT value FROM json_each(?1))"
_OPEN = "o.ended_at IS NULL AND o.schedule_id IS NOT NULL"

#: The number of a schedule's row, and the schedule with its open runs, if there are any: how many, how many of them
#: wait, how often it was touched, the two oldest.
_OPEN_OF_IT = f"FROM run o INDEXED BY run_open_of_schedule WHERE o.schedule_id = s.id AND {_OPEN}"
_ALONE = f"'schedule', {SCHEDULE_JSON}, 'touched', s.touched, 'open', 0, 'waiting', 0"
_WITH_RUNS = f"""json_array(s.sid, CASE WHEN NOT EXISTS (SELECT 1 {_OPEN_OF_IT}) THEN json_object({_ALONE}) ELSE
    json_object('schedule', {SCHEDULE_JSON}, 'touched', s.touched, 'open', (SELECT count(*) {_OPEN_OF_IT}),
    'waiting', (SELECT count(*) {_OPEN_OF_IT} AND o.state <> 'running'),
    'oldest', (SELECT json_group_array({RUN_JSON}) FROM (SELECT * {_OPEN_OF_IT} ORDER BY o.id LIMIT 2) r)) END)"""  # noqa: S608

#: held ids, until when, limit → the due schedules; the next instant at which one is due; when the held ones are.
_DUE_SCHEDULES = f"""
SELECT (SELECT json_group_array({_WITH_RUNS}) FROM (
    SELECT * FROM schedule s WHERE {_PLANS} AND s.next_at <= ?2 AND {_NOT_HELD} ORDER BY s.next_at, s.sid LIMIT ?3) s),
    (SELECT s.next_at FROM schedule s WHERE {_PLANS} AND s.next_at > ?2 AND {_NOT_HELD} ORDER BY s.next_at LIMIT 1),
    (SELECT json_group_array(json_array(s.id, s.next_at)) FROM json_each(?1) j CROSS JOIN schedule s
     WHERE s.id = j.value AND {_PLANS})
"""  # noqa: S608
#: held ids, limit
_TOUCHED = f"""
SELECT json_group_array({_WITH_RUNS}) FROM (
    SELECT * FROM schedule s INDEXED BY schedule_touched
    WHERE s.touched > 0 AND {_NOT_HELD} ORDER BY s.id LIMIT ?2) s
"""  # noqa: S608

#: held ids, lease time, limit
_EXPIRED = f"""
SELECT json_group_array({RUN_JSON}) FROM (
    SELECT * FROM run s INDEXED BY run_lease
    WHERE s.state = 'running' AND ifnull(s.lease_until, 0) <= ?2 AND {_NOT_HELD}
    ORDER BY ifnull(s.lease_until, 0) LIMIT ?3) r
"""  # noqa: S608
_LEASE_FREE = f"""
SELECT ifnull(s.lease_until, 0) FROM run s INDEXED BY run_lease
WHERE s.state = 'running' AND {_NOT_HELD} ORDER BY ifnull(s.lease_until, 0) LIMIT 1
"""  # noqa: S608
_LEASE_HELD = """
SELECT json_group_array(json_array(r.id, ifnull(r.lease_until, 0))) FROM json_each(?1) j CROSS JOIN run r
WHERE r.id = j.value AND r.state = 'running'
"""
_schedules = msgspec.json.Decoder(list[tuple[int, DueSchedule]], strict=False)
_pairs = msgspec.json.Decoder(list[tuple[str, Ms]])


def due(db: Database, agenda: Agenda, limit: int, hold: Ms, ahead: Ms, now: Ms | None) -> Due:
    """The rows of one agenda, marked held."""
    wall, lease_now = db.clocks(now)
    db.reach("due:begin")
    if agenda is Agenda.GATES:
        return Due(wall, None, unparked=unpark(db, limit, wall))
    for key in [key for key, until in db.held.items() if until <= wall]:
        del db.held[key]
    if agenda is Agenda.EXPIRED:
        with db.snapshot():
            return _expired(db, limit, hold, wall, lease_now)
    held = pack(list(db.held))
    with db.read():
        if agenda is Agenda.TOUCHED:
            rows, free, waiting = _schedules.decode(db.value(_TOUCHED, held, limit)), None, []
        else:
            text, free, holding = db.run(_DUE_SCHEDULES, held, wall + ahead, limit).fetchone()
            rows, waiting = _schedules.decode(text), _pairs.decode(holding)
    found = [row for _, row in rows]
    db.sids = {row.schedule.id: sid for sid, row in rows}
    times = [max(at, db.held[key]) for key, at in waiting]  # a held one is due when its hold ends
    if free is not None:
        times.append(free)
    if len(found) >= limit:
        times.append(wall)
    for row in found:
        next_at = row.schedule.next_at or 0
        if agenda is Agenda.SCHEDULES and next_at > wall:
            db.held[row.schedule.id] = next_at
        else:
            db.held[row.schedule.id] = wall + hold
            times.append(wall + hold)
    return Due(wall, min(times, default=None), tuple(found))


def _expired(db: Database, limit: int, hold: Ms, wall: Ms, lease_now: Ms) -> Due:
    found = read_runs(db.value(_EXPIRED, pack(list(db.held)), lease_now, limit))
    before = dict(db.held)
    db.held.update((run.id, wall + hold) for run in found)
    waits = [
        max(ends - lease_now, before[key] - wall, 0) for key, ends in _read_pairs(db, _LEASE_HELD, pack(list(before)))
    ]
    free = db.value(_LEASE_FREE, pack(list(db.held)))
    if free is not None:
        waits.append(max(free - lease_now, 0))
    return Due(wall, wall + min(waits) if waits else None, runs=tuple(found))


def _read_pairs(db: Database, sql: str, ids: Any) -> list[tuple[str, Ms]]:
    return _pairs.decode(db.value(sql, ids)) if ids != "[]" else []
