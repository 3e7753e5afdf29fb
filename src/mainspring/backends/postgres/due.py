"""The store's method `due`: return the due rows of an agenda, held for a moment, so that other instances skip them."""

from __future__ import annotations

from typing import Any

from mainspring.backends.postgres.database import Database
from mainspring.backends.postgres.rows import (
    NOW_SQL,
    RUN_FIELDS,
    SCHEDULE_FIELDS,
    read_run,
    read_schedule,
    run_columns,
    schedule_columns,
)
from mainspring.backends.postgres.unpark import unpark
from mainspring.model.instant import Ms
from mainspring.ports.store import Agenda, Due, DueSchedule

#: SQL: true for schedules that have a fire to plan.
_PLANS = "s.next_at IS NOT NULL AND s.state NOT IN ('finished', 'deleted')"
#: SQL: the instant, and the end of the look-ahead, up to which schedules count as due.
_T = "(SELECT now FROM t)"
_SOON = f"({_T} + $4::bigint)"
#: SQL: true for open runs `o` of the schedule `u`.
_IS_OPEN_SQL = "o.schedule_id = u.id AND o.ended_at IS NULL AND o.schedule_id IS NOT NULL"


def _hold_schedules_sql(where: str, order: str, until: str, rest: str) -> str:
    """Return SQL that holds and returns schedules that no other instance holds.

    The arguments are SQL. `where`: which schedules. `order`: by which order the limit cuts. `until`: the end of the
    hold. `rest`: the first instant at which a schedule that is not returned falls due, or the hold of another instance
    ends. Parameters of the statement: now, limit, hold, look-ahead.

    One row has the instant, and `rest` as `next_free`, NULL if the limit was reached. The others are, for each
    schedule, a row for each of its two oldest open runs, or one row without a run; each has the counts of the
    schedule's open runs.
    """
    none = ", ".join("NULL" for _ in (*SCHEDULE_FIELDS, *RUN_FIELDS))
    return f"""
WITH t AS MATERIALIZED (SELECT {NOW_SQL} AS now),
d AS MATERIALIZED (
    SELECT s.id FROM §schedule s WHERE {where} AND s.held_until <= {_T}
    ORDER BY {order} LIMIT $2::integer FOR UPDATE SKIP LOCKED),
u AS (
    UPDATE §schedule s SET held_until = {until} FROM t, d WHERE s.id = d.id
    RETURNING s.touched, {schedule_columns("s")})
SELECT t.now, 0::bigint AS open, 0::bigint AS waiting, (SELECT count(*) FROM d)::integer AS touched,
       CASE WHEN (SELECT count(*) FROM d) < $2 THEN {rest} END AS next_free, {none}
FROM t
UNION ALL
SELECT NULL, n.open, n.waiting, u.touched, NULL, {schedule_columns("u")}, {run_columns("o")}
FROM u
CROSS JOIN LATERAL (
    SELECT count(*) AS open, count(*) FILTER (WHERE o.state <> 'running') AS waiting FROM §run o WHERE {_IS_OPEN_SQL}) n
LEFT JOIN LATERAL (SELECT * FROM §run o WHERE {_IS_OPEN_SQL} ORDER BY o.id LIMIT 2) o ON true
"""  # noqa: S608 - column names, no input


#: A schedule that is due is held for the parameter `hold`. A schedule that falls due within the look-ahead is held
#: until its own time.
_HOLD_DUE_SCHEDULES = _hold_schedules_sql(
    f"{_PLANS} AND s.next_at <= {_SOON}",
    "s.next_at, s.id",
    "CASE WHEN s.next_at > t.now THEN s.next_at ELSE t.now + $3::bigint END",
    f"""least(
        (SELECT s.next_at FROM §schedule s WHERE {_PLANS} AND s.next_at > {_SOON} ORDER BY s.next_at, s.id LIMIT 1),
        (SELECT min(s.held_until) FROM §schedule s
         WHERE {_PLANS} AND s.next_at <= {_SOON} AND s.held_until > {_T}))""",  # noqa: S608
)
_HOLD_TOUCHED_SCHEDULES = _hold_schedules_sql(
    "s.touched > 0 AND $4::bigint = 0", "s.id", "t.now + $3::bigint", "NULL::bigint"
)
_SCHEDULE_START = 5
_RUN_START = _SCHEDULE_START + len(SCHEDULE_FIELDS)

#: Parameters: now, limit, hold. The first row has the instant, and the instant at which to ask again. Then follow
#: running runs whose lease has ended, which are held from now on.
_HOLD_EXPIRED_LEASES = f"""
WITH t AS MATERIALIZED (SELECT {NOW_SQL} AS now),
d AS MATERIALIZED (
    SELECT r.id FROM §run r WHERE r.state = 'running' AND coalesce(r.lease_until, 0) <= {_T} AND r.held_until <= {_T}
    ORDER BY coalesce(r.lease_until, 0), r.id LIMIT $2::integer FOR UPDATE SKIP LOCKED),
u AS (
    UPDATE §run r SET held_until = t.now + $3::bigint FROM t, d WHERE r.id = d.id RETURNING {run_columns("r")})
SELECT t.now, CASE WHEN (SELECT count(*) FROM d) < $2 THEN (
    SELECT min(greatest(coalesce(r.lease_until, 0), r.held_until)) FROM §run r
    WHERE r.state = 'running' AND greatest(coalesce(r.lease_until, 0), r.held_until) > {_T})
    ELSE t.now END AS next_free,
    {", ".join("NULL" for _ in RUN_FIELDS)}
FROM t
UNION ALL
SELECT NULL, NULL, {run_columns("u")} FROM u
"""  # noqa: S608


async def due(db: Database, agenda: Agenda, limit: int, hold: Ms, ahead: Ms, now: Ms | None) -> Due:
    """Hold and return up to `limit` due rows of an agenda, with the instant at which to ask again.

    The rows are held for `hold` milliseconds. Schedules that fall due in the next `ahead` milliseconds count as due,
    and are held until their time. For the agenda GATES, unpark up to `limit` runs instead and return their number. For
    the agendas GATES and TOUCHED, the instant at which to ask again is not known and therefore None. With a limit of 0,
    hold nothing and return only the store's time. `now`: the instant of a test, else None.
    """
    db.reach("due:begin")
    if agenda is Agenda.GATES:
        wall, freed = await unpark(db, limit, now)
        return Due(wall, None, unparked=freed)
    if limit <= 0:
        async with db.read_only() as session:
            return Due(await session.value(f"SELECT {NOW_SQL}", db.now(now)))
    if agenda is Agenda.EXPIRED:
        return await _hold_expired_leases(db, limit, hold, now)
    if agenda is Agenda.TOUCHED:
        about, found = await _hold_schedules(db, _HOLD_TOUCHED_SCHEDULES, limit, hold, 0, now)
        return Due(about["now"], None, tuple(sorted(found, key=lambda row: row.schedule.id)))
    about, found = await _hold_schedules(db, _HOLD_DUE_SCHEDULES, limit, hold, ahead, now)
    return _due_schedules(about, found, limit, hold)


async def _hold_schedules(
    db: Database, statement: str, limit: int, hold: Ms, ahead: Ms, now: Ms | None
) -> tuple[Any, list[DueSchedule]]:
    """Hold up to `limit` schedules; return the row with `now` and `next_free`, and the schedules in no order.

    `statement`: a statement of `_hold_schedules_sql`. `hold` and `ahead`: its parameters, in milliseconds. `next_free`:
    the first instant at which another schedule can be held, None if it is not known. The hold is committed before the
    settler plans: an instance that stands still meanwhile leaves no row locked.
    """
    async with db.single_statement("due") as session:
        records = await session.fetch(statement, db.now(now), limit, hold, ahead)
    about = next(record for record in records if record["now"] is not None)
    return about, _read_schedules([record for record in records if record["now"] is None])


def _due_schedules(about: Any, found: list[DueSchedule], limit: int, hold: Ms) -> Due:
    """Return the answer of `due` for held schedules: sorted by time, with the instant at which to ask again.

    `about`: the row with `now`, and with `next_free`, the first instant at which another schedule can be held. `found`:
    the schedules. `limit` and `hold`: the parameters of the statement that held them.
    """
    wall: Ms = about["now"]
    found.sort(key=lambda row: (row.schedule.next_at or 0, row.schedule.id))
    times = [about["next_free"]] if about["next_free"] is not None else []
    if len(found) >= limit:
        times.append(wall)
    if any((row.schedule.next_at or 0) <= wall for row in found):
        times.append(wall + hold)
    return Due(wall, min(times, default=None), tuple(found))


def _read_schedules(records: list[Any]) -> list[DueSchedule]:
    """Return a DueSchedule for each schedule in the records of a statement that held schedules.

    A record has a schedule, the counts of its open runs, and one of these runs or NULLs.
    """
    found: dict[str, list[Any]] = {}
    for record in records:
        schedule = read_schedule(record[_SCHEDULE_START:_RUN_START])
        head = (schedule, record["open"], record["waiting"], record["touched"])
        _, runs = found.setdefault(schedule.id, [head, []])
        if record[_RUN_START] is not None:
            runs.append(read_run(record[_RUN_START:]))
    return [
        DueSchedule(schedule, open_, waiting, tuple(sorted(runs, key=lambda run: run.id)), touched)
        for (schedule, open_, waiting, touched), runs in found.values()
    ]


async def _hold_expired_leases(db: Database, limit: int, hold: Ms, now: Ms | None) -> Due:
    """Hold and return up to `limit` running runs whose lease has ended, in the order in which the leases ended.

    Each is held for `hold` milliseconds. The answer also has the instant at which to ask again. `now`: the instant of a
    test, else None.
    """
    async with db.single_statement("due") as session:
        records = await session.fetch(_HOLD_EXPIRED_LEASES, db.now(now), limit, hold)
    about = next(record for record in records if record["now"] is not None)
    runs = sorted(
        (read_run(record[2:]) for record in records if record["now"] is None),
        key=lambda run: (run.lease_until or 0, run.id),
    )
    wall, free = about["now"], about["next_free"]
    return Due(wall, free, runs=tuple(runs))
