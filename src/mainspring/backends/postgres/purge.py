"""Retention: remove old runs, spans, schedules and their events, notes, leases and key-value entries.

Each call removes a limited number of rows, so that no lock is held for long. Tallies count the removed runs and fires.
A snapshot replaces the events of a schedule that stays. A note, an event that changes no row, records each removal of
runs, spans or schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring.backends.postgres.database import Database, Session
from mainspring.backends.postgres.keyvalue import DELETE_ENTRIES, EXPIRED_ENTRIES
from mainspring.backends.postgres.leases import HIGHEST_CHARACTER
from mainspring.backends.postgres.rows import (
    EVENT_COLUMNS,
    INSERT_EVENTS,
    NOW_SQL,
    column_arrays,
    event_columns,
    event_row,
    read_event,
    read_schedule,
    schedule_columns,
    storable_text,
    unnest_columns,
)
from mainspring.backends.postgres.run_logs import remove_logs
from mainspring.model.gate import SCHEDULE_GATE_PREFIX
from mainspring.model.ids import ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.retention import Purged, Retention
from mainspring.rules.retention import (
    Removable,
    RemovedRun,
    RemovedSpan,
    TallyKey,
    compaction_note,
    count_tallies,
    schedules_to_compact,
    snapshot_schedules,
)

#: Parameters: an instant, limit, dead (true or false). Locks and returns runs that ended before the instant, those that
#: ended first at the front, without rows locked by others. If `dead` is true, only dead letters count, else only other
#: runs.
_ENDED_RUNS = """
SELECT r.id, r.schedule_id, r.origin, coalesce(r.fire_time, r.created_at) AS at, r.state, r.body FROM §run r
WHERE r.ended_at IS NOT NULL AND r.dead = $3::boolean AND r.ended_at < $1
ORDER BY r.ended_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
#: Parameters: before, limit. Locks and returns spans whose last fire lies before this instant.
_SPANS = """
SELECT p.sid, p.schedule_id, p.through, p.reason, p.count FROM §span p WHERE p.through < $1
ORDER BY p.through LIMIT $2 FOR UPDATE SKIP LOCKED
"""
#: Parameters: before, limit. Returns the numbers of notes written before this instant, but never of the newest
#: `LogCompacted`, which explains the tallies.
_NOTES = """
SELECT e.seq FROM §event e WHERE e.n IS NULL AND e.at < $1 AND e.seq <> coalesce((
    SELECT c.seq FROM §event c WHERE c.n IS NULL AND c.type = 'LogCompacted' ORDER BY c.at DESC, c.seq DESC LIMIT 1), 0)
ORDER BY e.at LIMIT $2
"""
#: Parameters: before, limit. Locks and returns schedules that were deleted before this instant and have no run or span.
_DELETED_SCHEDULES = """
SELECT s.id, s.body FROM §schedule s
WHERE s.state = 'deleted' AND s.updated_at < $1
  AND NOT EXISTS (SELECT 1 FROM §run r WHERE r.schedule_id = s.id AND r.schedule_id IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM §span p WHERE p.schedule_id = s.id)
ORDER BY s.updated_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
#: Parameters: prefix of names, instant, now, limit, end of the range of names. Locks and returns the names of leases
#: that have ended and were last renewed before the instant.
_ENDED_LEASES = """
SELECT name FROM §lease
WHERE name >= $1 AND name <= $5 AND starts_with(name, $1) AND renewed_at < $2 AND (NOT live OR expires_at <= $3)
LIMIT $4 FOR UPDATE SKIP LOCKED
"""
_TALLY_COLUMNS = {"schedule_id": "text", "day": "integer", "outcome": "text", "count": "bigint"}
#: Parameters: _TALLY_COLUMNS. Adds each count to its tally.
_ADD_TO_TALLIES = f"""
INSERT INTO §tally AS y (schedule_id, day, outcome, count)
SELECT i.schedule_id, i.day, i.outcome, i.count FROM {unnest_columns(_TALLY_COLUMNS)} ORDER BY i.ord
ON CONFLICT (schedule_id, day, outcome) DO UPDATE SET count = y.count + excluded.count
"""  # noqa: S608 - column names, no input
#: Parameters: schedule ids. Returns the schedules' own events, without those of their runs.
_SCHEDULE_EVENTS = f"""
SELECT {event_columns("e")} FROM §event e
WHERE e.schedule_id = ANY ($1::text[]) AND e.run_id IS NULL AND e.schedule_id IS NOT NULL AND e.n IS NOT NULL
ORDER BY e.seq
"""  # noqa: S608
#: Parameters: schedule ids. Locks and returns the schedules.
_LOCK_SCHEDULES = f"""
SELECT {schedule_columns("s")} FROM §schedule s WHERE s.id = ANY ($1::text[]) ORDER BY s.id FOR UPDATE
"""  # noqa: S608
#: Parameters: schedule ids. Run one after the other, these statements add the tallies of the schedules to the tallies
#: without a schedule, and delete the schedules with their gates.
_REMOVE_SCHEDULES = (
    """INSERT INTO §tally AS y (schedule_id, day, outcome, count)
       SELECT '', t.day, t.outcome, sum(t.count) FROM §tally t WHERE t.schedule_id = ANY ($1::text[]) GROUP BY 2, 3
       ON CONFLICT (schedule_id, day, outcome) DO UPDATE SET count = y.count + excluded.count""",
    "DELETE FROM §tally WHERE schedule_id = ANY ($1::text[])",
    f"""DELETE FROM §gate WHERE held = 0
        AND name = ANY (ARRAY(SELECT '{SCHEDULE_GATE_PREFIX}' || x FROM unnest($1::text[]) x))""",  # noqa: S608
    "DELETE FROM §schedule WHERE id = ANY ($1::text[])",
)
_DELETE_RUN_EVENTS = "DELETE FROM §event WHERE run_id = ANY ($1::text[]) AND run_id IS NOT NULL RETURNING seq"
_LOCK_BODIES = "SELECT id FROM §body WHERE id = ANY ($1::text[]) ORDER BY id FOR UPDATE SKIP LOCKED"
#: Parameter: ids of payloads. Deletes those that no run or schedule uses. Why it is another statement than the lock:
#: its snapshot then shows every run that a transaction inserted before the payload was locked.
_DELETE_BODIES = """
DELETE FROM §body b WHERE b.id = ANY ($1::text[])
  AND NOT EXISTS (SELECT 1 FROM §run r WHERE r.body = b.id AND r.body IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM §schedule s WHERE s.body = b.id AND s.body IS NOT NULL)
RETURNING id
"""


async def purge(db: Database, policy: Retention, limit: int, now: Ms | None) -> Purged:
    """Remove rows that the retention policy no longer keeps, at most `limit` of each kind, in one transaction.

    Returns how many rows of each kind were removed, and whether there are more. In place of removed rows and events,
    tallies (counts), snapshots of schedules and a note in the log are written. Payloads that only removed rows used are
    removed, too. `now`: the instant of a test, else None.
    """
    async with db.transaction("purge") as session:
        wall: Ms = await session.value(f"SELECT {NOW_SQL}", db.now(now))
        found, all_spans = await _find_removable(session, policy, limit, wall)
        if not (all_spans or any(found)):
            return Purged()
        rows, spans = found.first(limit), all_spans[:limit]
        removed, bodies = await _compact(session, rows, spans, wall)
        if rows.notes:
            await session.fetch("DELETE FROM §event WHERE seq = ANY ($1::bigint[])", [row["seq"] for row in rows.notes])
        if rows.leases:
            names = [row["name"] for row in rows.leases]
            await session.fetch("DELETE FROM §lease WHERE name = ANY ($1::text[])", names)
        if rows.kept:
            await session.fetch(DELETE_ENTRIES, [row["kind"] for row in rows.kept], [row["id"] for row in rows.kept])
    more = found.exceeds(limit) or len(all_spans) > limit
    return rows.report(events=len(removed), spans=len(spans), bodies=bodies, more=more)


async def _find_removable(session: Session, policy: Retention, limit: int, wall: Ms) -> tuple[Removable, list[Any]]:
    """Find rows that may be removed, and lock all of them but the notes; return the spans as the second value.

    The first value has the rows of all other kinds. There are up to `limit` + 1 rows of each kind: the last row shows
    that another call is needed. `wall`: the transaction's instant, which decides whether a lease or a key-value entry
    has ended.
    """
    before, most = policy.ended_before, limit + 1
    prefix = storable_text(policy.lease_prefix) or ""
    runs = await session.fetch(_ENDED_RUNS, before, most, False)
    if not policy.keep_dead and len(runs) < most:
        runs += await session.fetch(_ENDED_RUNS, before, most - len(runs), True)
    spans = await session.fetch(_SPANS, before, most)
    found = Removable(
        runs=runs,
        notes=await session.fetch(_NOTES, before, most),
        schedules=await session.fetch(_DELETED_SCHEDULES, before, most),
        leases=await session.fetch(_ENDED_LEASES, prefix, policy.leases_before, wall, most, prefix + HIGHEST_CHARACTER),
        kept=await session.fetch(EXPIRED_ENTRIES, wall, most),
    )
    return found, spans


async def _compact(session: Session, rows: Removable, spans: list[Any], wall: Ms) -> tuple[list[int], int]:
    """Remove runs, spans and deleted schedules with their events; write tallies, snapshots and a note instead.

    A tally counts removed runs or fires, a snapshot replaces the events of a schedule that stays, and the note records
    this removal. `wall`: the transaction's instant, stamped on the new events. Returns the numbers of the deleted
    events, and how many payloads were deleted because no other row uses them.
    """
    removed_runs = [RemovedRun(row["schedule_id"], row["origin"], row["at"], row["state"]) for row in rows.runs]
    removed_spans = [RemovedSpan(row["schedule_id"], row["through"], row["reason"], row["count"]) for row in spans]
    tallies = count_tallies(removed_runs, removed_spans)
    await _add_tallies(session, tallies)
    removed = await _remove_runs(session, [row["id"] for row in rows.runs])
    if spans:
        await session.fetch("DELETE FROM §span WHERE sid = ANY ($1::bigint[])", [row["sid"] for row in spans])
    removed += await _replace_events_by_snapshots(session, schedules_to_compact(removed_runs, removed_spans), wall)
    removed += await _remove_schedules(session, [row["id"] for row in rows.schedules])
    used = {row["body"] for row in (*rows.runs, *rows.schedules) if row["body"] is not None}
    bodies = await _remove_bodies(session, used)
    if rows.runs or spans or rows.schedules:
        note = compaction_note(removed, runs=len(rows.runs), tallies=len(tallies))
        await _append(session, wall, [event_row(note, None, None)])
    return removed, bodies


async def _add_tallies(session: Session, tallies: Mapping[TallyKey, int]) -> None:
    """Add counts of removed runs and fires to the stored counts (tallies).

    `tallies`: (schedule id, day, outcome) → count to add. The schedule id is None for runs without a schedule; the day
    is the number of days since 1970. The rows are written in the order of these keys: transactions that lock rows in
    one order cannot deadlock.
    """
    rows = sorted((schedule_id or "", day, outcome, count) for (schedule_id, day, outcome), count in tallies.items())
    if rows:
        await session.fetch(_ADD_TO_TALLIES, *column_arrays(rows, len(_TALLY_COLUMNS)))


async def _remove_runs(session: Session, ids: list[str]) -> list[int]:
    """Delete the runs with these ids, their events and logs; return the numbers of the deleted events."""
    if not ids:
        return []
    removed = [row["seq"] for row in await session.fetch(_DELETE_RUN_EVENTS, ids)]
    await remove_logs(session, ids)
    await session.fetch("DELETE FROM §run WHERE id = ANY ($1::text[])", ids)
    return removed


async def _replace_events_by_snapshots(session: Session, schedules: list[ScheduleId], wall: Ms) -> list[int]:
    """Replace the own events of schedules by one snapshot each; return the numbers of the deleted events.

    The events of their runs stay. `schedules`: ids; a schedule that does not exist is skipped. `wall`: the
    transaction's instant, stamped on the snapshots.
    """
    if not schedules:
        return []
    rows = [read_schedule(row) for row in await session.fetch(_LOCK_SCHEDULES, schedules)]
    if not rows:
        return []
    events = [read_event(row) for row in await session.fetch(_SCHEDULE_EVENTS, [row.id for row in rows])]
    removed = [event.seq for event in events]
    await session.fetch("DELETE FROM §event WHERE seq = ANY ($1::bigint[])", removed)
    snapshots = snapshot_schedules(rows, events)
    await _append(session, wall, [event_row(event, None, event.state.n) for event in snapshots])
    return removed


async def _remove_schedules(session: Session, schedules: list[str]) -> list[int]:
    """Delete schedules with their events and their gates that no run holds; return the numbers of the deleted events.

    `schedules`: their ids. Their tallies (counts of removed runs and fires) are added to the tallies without a
    schedule.
    """
    if not schedules:
        return []
    removed = [row["seq"] for row in await session.fetch(_SCHEDULE_EVENTS, schedules)]
    await session.fetch("DELETE FROM §event WHERE seq = ANY ($1::bigint[])", removed)
    for statement in _REMOVE_SCHEDULES:
        await session.fetch(statement, schedules)
    return removed


async def _remove_bodies(session: Session, candidates: set[str]) -> int:
    """Delete payloads that no run or schedule uses, without those locked by others; return how many were deleted.

    `candidates`: the ids of payloads that removed rows used.
    """
    if not candidates:
        return 0
    locked = [row["id"] for row in await session.fetch(_LOCK_BODIES, sorted(candidates))]
    return len(await session.fetch(_DELETE_BODIES, locked))


async def _append(session: Session, wall: Ms, rows: list[tuple[Any, ...]]) -> None:
    """Append events, given as rows of `event_row`, to the log at the instant `wall`."""
    await session.fetch(INSERT_EVENTS, wall, *column_arrays(rows, len(EVENT_COLUMNS)))
