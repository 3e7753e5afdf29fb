"""The store's `due`: the rows of one agenda that the settler has to work on.

Holds are kept in memory, so other instances do not see them. They only save double work: guards protect the rows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.rows import RUN_JSON, SCHEDULE_JSON, pack, read_runs
from mainspring.backends.sqlite.unpark import unpark
from mainspring.model.instant import Ms
from mainspring.ports.store import Agenda, Due, DueSchedule

_IS_PLANNED = "s.next_at IS NOT NULL AND s.state NOT IN ('finished', 'deleted')"
_NOT_HELD = "s.id NOT IN (SELECT value FROM json_each(?1))"
_IS_OPEN_SQL = "o.ended_at IS NULL AND o.schedule_id IS NOT NULL"

#: SQL for [row number of a schedule, the schedule as a `DueSchedule`]: with its number of touches, its numbers of open
#: and of waiting runs, and its two oldest open runs. Most schedules have no open run, so that is tested first.
_OPEN_RUNS = f"FROM run o INDEXED BY run_open_of_schedule WHERE o.schedule_id = s.id AND {_IS_OPEN_SQL}"
_WITHOUT_RUNS = f"'schedule', {SCHEDULE_JSON}, 'touched', s.touched, 'open', 0, 'waiting', 0"
_DUE_SCHEDULE = f"""json_array(s.sid, CASE
    WHEN NOT EXISTS (SELECT 1 {_OPEN_RUNS}) THEN json_object({_WITHOUT_RUNS})
    ELSE json_object('schedule', {SCHEDULE_JSON}, 'touched', s.touched, 'open', (SELECT count(*) {_OPEN_RUNS}),
    'waiting', (SELECT count(*) {_OPEN_RUNS} AND o.state <> 'running'),
    'oldest', (SELECT json_group_array({RUN_JSON}) FROM (SELECT * {_OPEN_RUNS} ORDER BY o.id LIMIT 2) r)) END)"""  # noqa: S608

#: Parameters: held ids, until when due, limit. Returns three values: the due schedules, the next instant at which a
#: further schedule that is not held is due, and [id, `next_at`] of each held schedule.
_DUE_SCHEDULES = f"""
SELECT (SELECT json_group_array({_DUE_SCHEDULE}) FROM (
    SELECT * FROM schedule s WHERE {_IS_PLANNED} AND s.next_at <= ?2 AND {_NOT_HELD}
    ORDER BY s.next_at, s.sid LIMIT ?3) s),
    (SELECT s.next_at FROM schedule s WHERE {_IS_PLANNED} AND s.next_at > ?2 AND {_NOT_HELD}
     ORDER BY s.next_at LIMIT 1),
    (SELECT json_group_array(json_array(s.id, s.next_at)) FROM json_each(?1) j CROSS JOIN schedule s
     WHERE s.id = j.value AND {_IS_PLANNED})
"""  # noqa: S608
#: Parameters: held ids, limit. Returns touched schedules.
_TOUCHED_SCHEDULES = f"""
SELECT json_group_array({_DUE_SCHEDULE}) FROM (
    SELECT * FROM schedule s INDEXED BY schedule_touched
    WHERE s.touched > 0 AND {_NOT_HELD} ORDER BY s.id LIMIT ?2) s
"""  # noqa: S608

#: Parameters: held ids, lease time, limit. Returns runs whose lease ended.
_EXPIRED_RUNS = f"""
SELECT json_group_array({RUN_JSON}) FROM (
    SELECT * FROM run s INDEXED BY run_lease
    WHERE s.state = 'running' AND ifnull(s.lease_until, 0) <= ?2 AND {_NOT_HELD}
    ORDER BY ifnull(s.lease_until, 0) LIMIT ?3) r
"""  # noqa: S608
#: Parameter: held ids. Returns when the first lease of a running run that is not held ends.
_FIRST_LEASE_END = f"""
SELECT ifnull(s.lease_until, 0) FROM run s INDEXED BY run_lease
WHERE s.state = 'running' AND {_NOT_HELD} ORDER BY ifnull(s.lease_until, 0) LIMIT 1
"""  # noqa: S608
#: Parameter: held ids. Returns [id, end of the lease] of the held runs that are running.
_HELD_LEASE_ENDS = """
SELECT json_group_array(json_array(r.id, ifnull(r.lease_until, 0))) FROM json_each(?1) j CROSS JOIN run r
WHERE r.id = j.value AND r.state = 'running'
"""
_schedules = msgspec.json.Decoder(list[tuple[int, DueSchedule]], strict=False)
_pairs = msgspec.json.Decoder(list[tuple[str, Ms]])


def due(db: Database, agenda: Agenda, limit: int, hold: Ms, ahead: Ms, now: Ms | None) -> Due:
    """Return up to `limit` due rows of the agenda and hold them for `hold` ms.

    Schedules that fall due within the next `ahead` ms are included, and held until their fire time. For the agenda of
    gates, up to `limit` runs are unparked instead, and their number is returned. `now`: the time to use, for tests;
    None: what the clock shows.
    """
    wall, lease_now = db.clocks(now)
    db.reach("due:begin")
    if agenda is Agenda.GATES:
        return Due(wall, None, unparked=unpark(db, limit, wall))
    for key in [key for key, until in db.held_until.items() if until <= wall]:
        del db.held_until[key]
    if agenda is Agenda.EXPIRED:
        with db.snapshot():
            return _expired_runs(db, limit, hold, wall, lease_now)
    held = pack(list(db.held_until))
    if agenda is Agenda.TOUCHED:
        with db.read():
            rows = _schedules.decode(db.value(_TOUCHED_SCHEDULES, held, limit))
        return _hold_schedules(db, rows, limit, hold, wall, [], can_be_early=False)
    with db.read():
        text, next_at, waiting = db.run(_DUE_SCHEDULES, held, wall + ahead, limit).fetchone()
    times = [max(at, db.held_until[key]) for key, at in _pairs.decode(waiting)]  # when held schedules are due again
    if next_at is not None:
        times.append(next_at)
    return _hold_schedules(db, _schedules.decode(text), limit, hold, wall, times, can_be_early=True)


def _hold_schedules(
    db: Database,
    rows: list[tuple[int, DueSchedule]],
    limit: int,
    hold: Ms,
    wall: Ms,
    times: list[Ms],
    *,
    can_be_early: bool,
) -> Due:
    """Hold the schedules of `rows` and return them with `next_at`, the instant at which `due` has more to return.

    `rows`: (row number, schedule). The numbers are kept in `db.schedule_row_ids` for `advance_schedules`. `limit`: if
    there are `limit` rows, more may be due, so `next_at` is now. `hold`: how long to hold a schedule. `wall`: the
    present time. `times`: when further schedules are due; the list is changed.

    `can_be_early`: a schedule whose fire time has not come is held until its fire time. That time does not count in
    `next_at`, because the caller plans that fire now.
    """
    found = [row for _, row in rows]
    db.schedule_row_ids = {row.schedule.id: sid for sid, row in rows}
    if len(found) >= limit:
        times.append(wall)
    for row in found:
        next_at = row.schedule.next_at or 0
        if can_be_early and next_at > wall:
            db.held_until[row.schedule.id] = next_at
        else:
            db.held_until[row.schedule.id] = wall + hold
            times.append(wall + hold)
    return Due(wall, min(times, default=None), tuple(found))


def _expired_runs(db: Database, limit: int, hold: Ms, wall: Ms, lease_now: Ms) -> Due:
    """Return up to `limit` running runs whose lease ended, and hold them for `hold` ms.

    `next_at` in the answer is the instant at which the next of the other running runs is due, when both its lease and
    its hold, if it has one, have ended. `wall`: the present time. `lease_now`: the present time by the clock of leases.
    """
    found = read_runs(db.value(_EXPIRED_RUNS, pack(list(db.held_until)), lease_now, limit))
    before = dict(db.held_until)
    db.held_until.update((run.id, wall + hold) for run in found)
    waits = [
        max(ends - lease_now, before[key] - wall, 0)
        for key, ends in _read_pairs(db, _HELD_LEASE_ENDS, pack(list(before)))
    ]
    first_end = db.value(_FIRST_LEASE_END, pack(list(db.held_until)))
    if first_end is not None:
        waits.append(max(first_end - lease_now, 0))
    return Due(wall, wall + min(waits) if waits else None, runs=tuple(found))


def _read_pairs(db: Database, sql: str, ids: Any) -> list[tuple[str, Ms]]:
    return _pairs.decode(db.value(sql, ids)) if ids != "[]" else []
