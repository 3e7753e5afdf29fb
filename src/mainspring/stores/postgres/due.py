"""What the settler should look at. Rows are marked held for a moment, so that other instances leave them alone."""

from __future__ import annotations

from typing import Any

from mainspring.model.instant import Ms
from mainspring.ports.store import Agenda, Due, DueSchedule
from mainspring.stores.postgres.database import Database
from mainspring.stores.postgres.parked import unpark
from mainspring.stores.postgres.rows import (
    NOW,
    RUN_FIELDS,
    SCHEDULE_FIELDS,
    read_run,
    read_schedule,
    run_columns,
    schedule_columns,
)

_PLANS = "s.next_at IS NOT NULL AND s.state NOT IN ('finished', 'deleted')"
_T = "(SELECT now FROM t)"
_SOON = f"({_T} + $4::bigint)"
_OPEN = "o.schedule_id = u.id AND o.ended_at IS NULL AND o.schedule_id IS NOT NULL"


def _schedules(where: str, order: str, until: str, rest: str) -> str:
    """SQL: limit, hold and how far ahead are $2, $3 and $4.

    One row about the rest, then the schedules and their open runs, a row each.
    """
    none = ", ".join("NULL" for _ in (*SCHEDULE_FIELDS, *RUN_FIELDS))
    return f"""
WITH t AS MATERIALIZED (SELECT {NOW} AS now),
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
    SELECT count(*) AS open, count(*) FILTER (WHERE o.state <> 'running') AS waiting FROM §run o WHERE {_OPEN}) n
LEFT JOIN LATERAL (SELECT * FROM §run o WHERE {_OPEN} ORDER BY o.id LIMIT 2) o ON true
"""  # noqa: S608 - column names, no input


#: Those that are due and held come when their hold ends; the others when their time has come.
_DUE_SCHEDULES = _schedules(
    f"{_PLANS} AND s.next_at <= {_SOON}",
    "s.next_at, s.id",
    "CASE WHEN s.next_at > t.now THEN s.next_at ELSE t.now + $3::bigint END",
    f"""least(
        (SELECT s.next_at FROM §schedule s WHERE {_PLANS} AND s.next_at > {_SOON} ORDER BY s.next_at, s.id LIMIT 1),
        (SELECT min(s.held_until) FROM §schedule s
         WHERE {_PLANS} AND s.next_at <= {_SOON} AND s.held_until > {_T}))""",  # noqa: S608
)
_TOUCHED = _schedules("s.touched > 0 AND $4::bigint = 0", "s.id", "t.now + $3::bigint", "NULL::bigint")
_HEAD = 5
_RUN_AT = _HEAD + len(SCHEDULE_FIELDS)

_EXPIRED = f"""
WITH t AS MATERIALIZED (SELECT {NOW} AS now),
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
    """The rows of one agenda, marked held."""
    db.reach("due:begin")
    if agenda is Agenda.GATES:
        wall, freed = await unpark(db, limit, now)
        return Due(wall, None, unparked=freed)
    if limit <= 0:
        async with db.reading() as session:
            return Due(await session.value(f"SELECT {NOW}", db.now(now)))
    if agenda is Agenda.EXPIRED:
        return await _expired(db, limit, hold, now)
    touched = agenda is Agenda.TOUCHED
    async with db.single("due") as session:
        sql, soon = (_TOUCHED, 0) if touched else (_DUE_SCHEDULES, ahead)
        records = await session.fetch(sql, db.now(now), limit, hold, soon)
    about = next(record for record in records if record["now"] is not None)
    wall = about["now"]
    found = _read_schedules([record for record in records if record["now"] is None])
    if touched:
        found.sort(key=lambda row: row.schedule.id)
        return Due(wall, None, tuple(found))
    found.sort(key=lambda row: (row.schedule.next_at or 0, row.schedule.id))
    times = [about["next_free"]] if about["next_free"] is not None else []
    if len(found) >= limit:
        times.append(wall)
    if any((row.schedule.next_at or 0) <= wall for row in found):
        times.append(wall + hold)
    return Due(wall, min(times, default=None), tuple(found))


def _read_schedules(records: list[Any]) -> list[DueSchedule]:
    """A schedule comes once for each of its oldest open runs, or once without."""
    found: dict[str, list[Any]] = {}
    for record in records:
        schedule = read_schedule(record[_HEAD:_RUN_AT])
        head = (schedule, record["open"], record["waiting"], record["touched"])
        _, runs = found.setdefault(schedule.id, [head, []])
        if record[_RUN_AT] is not None:
            runs.append(read_run(record[_RUN_AT:]))
    return [
        DueSchedule(schedule, open_, waiting, tuple(sorted(runs, key=lambda run: run.id)), touched)
        for (schedule, open_, waiting, touched), runs in found.values()
    ]


async def _expired(db: Database, limit: int, hold: Ms, now: Ms | None) -> Due:
    async with db.single("due") as session:
        records = await session.fetch(_EXPIRED, db.now(now), limit, hold)
    about = next(record for record in records if record["now"] is not None)
    runs = sorted(
        (read_run(record[2:]) for record in records if record["now"] is None),
        key=lambda run: (run.lease_until or 0, run.id),
    )
    wall, free = about["now"], about["next_free"]
    return Due(wall, free, runs=tuple(runs))
