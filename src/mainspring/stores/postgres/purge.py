"""Retention: whole streams go, tallies, snapshots and one note say what they were. Small steps, no long locks."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from mainspring.model.events import Event, LogCompacted, ScheduleSnapshot, definitions
from mainspring.model.instant import Ms
from mainspring.ports.store import Purged, Retention
from mainspring.stores.postgres.database import Database, Session
from mainspring.stores.postgres.kept import EXPIRED, REMOVE
from mainspring.stores.postgres.leases import LAST
from mainspring.stores.postgres.rows import (
    EVENT_COLUMNS,
    INSERT_EVENTS,
    NOW,
    arrays,
    event_columns,
    event_row,
    given,
    plain_text,
    read_event,
    read_schedule,
    schedule_columns,
)

DAY_MS = 86_400_000

#: before, limit, dead or not: runs that ended, the longest ended first; what others hold is left to them.
_DOOMED = """
SELECT r.id, r.schedule_id, r.origin, coalesce(r.fire_time, r.created_at) AS at, r.state, r.body FROM §run r
WHERE r.ended_at IS NOT NULL AND r.dead = $3::boolean AND r.ended_at < $1
ORDER BY r.ended_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_SPANS = """
SELECT p.sid, p.schedule_id, p.through, p.reason, p.count FROM §span p WHERE p.through < $1
ORDER BY p.through LIMIT $2 FOR UPDATE SKIP LOCKED
"""
#: before, limit: the newest word of a compaction stays, the tallies rest on it.
_NOTES = """
SELECT e.seq FROM §event e WHERE e.n IS NULL AND e.at < $1 AND e.seq <> coalesce((
    SELECT c.seq FROM §event c WHERE c.n IS NULL AND c.type = 'LogCompacted' ORDER BY c.at DESC, c.seq DESC LIMIT 1), 0)
ORDER BY e.at LIMIT $2
"""
#: before, limit: deleted schedules without a run or a span.
_GONE = """
SELECT s.id, s.body FROM §schedule s
WHERE s.state = 'deleted' AND s.updated_at < $1
  AND NOT EXISTS (SELECT 1 FROM §run r WHERE r.schedule_id = s.id AND r.schedule_id IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM §span p WHERE p.schedule_id = s.id)
ORDER BY s.updated_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
#: prefix, not renewed since, now, limit, the end of the range
_PAST_LEASES = """
SELECT name FROM §lease
WHERE name >= $1 AND name <= $5 AND starts_with(name, $1) AND renewed_at < $2 AND (NOT live OR expires_at <= $3)
LIMIT $4 FOR UPDATE SKIP LOCKED
"""
_TALLY_COLUMNS = {"schedule_id": "text", "day": "integer", "outcome": "text", "count": "bigint"}
_COUNT = f"""
INSERT INTO §tally AS y (schedule_id, day, outcome, count)
SELECT i.schedule_id, i.day, i.outcome, i.count FROM {given(_TALLY_COLUMNS)} ORDER BY i.ord
ON CONFLICT (schedule_id, day, outcome) DO UPDATE SET count = y.count + excluded.count
"""  # noqa: S608 - column names, no input
_STREAMS = f"""
SELECT {event_columns("e")} FROM §event e
WHERE e.schedule_id = ANY ($1::text[]) AND e.run_id IS NULL AND e.schedule_id IS NOT NULL AND e.n IS NOT NULL
ORDER BY e.seq
"""  # noqa: S608
_ROWS = f"""
SELECT {schedule_columns("s")} FROM §schedule s WHERE s.id = ANY ($1::text[]) ORDER BY s.id FOR UPDATE
"""  # noqa: S608
_FORGET = (
    """INSERT INTO §tally AS y (schedule_id, day, outcome, count)
       SELECT '', t.day, t.outcome, sum(t.count) FROM §tally t WHERE t.schedule_id = ANY ($1::text[]) GROUP BY 2, 3
       ON CONFLICT (schedule_id, day, outcome) DO UPDATE SET count = y.count + excluded.count""",
    "DELETE FROM §tally WHERE schedule_id = ANY ($1::text[])",
    "DELETE FROM §gate WHERE held = 0 AND name = ANY (ARRAY(SELECT 'schedule:' || x FROM unnest($1::text[]) x))",
    "DELETE FROM §schedule WHERE id = ANY ($1::text[])",
)
_DELETE_RUN_EVENTS = "DELETE FROM §event WHERE run_id = ANY ($1::text[]) AND run_id IS NOT NULL RETURNING seq"
_LOCK_BODIES = "SELECT id FROM §body WHERE id = ANY ($1::text[]) ORDER BY id FOR UPDATE SKIP LOCKED"
#: After the lock, in a statement of its own: whoever relies on one of them by now can be seen.
_DELETE_BODIES = """
DELETE FROM §body b WHERE b.id = ANY ($1::text[])
  AND NOT EXISTS (SELECT 1 FROM §run r WHERE r.body = b.id AND r.body IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM §schedule s WHERE s.body = b.id AND s.body IS NOT NULL)
RETURNING id
"""


class _Removable(NamedTuple):
    """What may go; of each kind one more than asked for when there is more."""

    runs: list[Any]
    spans: list[Any]
    notes: list[Any]
    schedules: list[Any]
    leases: list[Any]
    kept: list[Any]


async def purge(db: Database, policy: Retention, limit: int, now: Ms | None) -> Purged:
    """Remove what retention allows, at most `limit` of each kind; all of it one transaction."""
    async with db.transaction("purge") as session:
        wall: Ms = await session.value(f"SELECT {NOW}", db.now(now))
        found = await _removable(session, policy, limit, wall)
        if not any(found):
            return Purged()
        more = any(len(rows) > limit for rows in found)
        doomed, gone, spans = found.runs[:limit], found.schedules[:limit], found.spans[:limit]
        tallies = await _count(session, doomed, spans)
        removed = await _remove_runs(session, [row["id"] for row in doomed])
        if spans:
            await session.fetch("DELETE FROM §span WHERE sid = ANY ($1::bigint[])", [row["sid"] for row in spans])
        schedules = {row["schedule_id"] for row in (*doomed, *spans) if row["schedule_id"] is not None}
        removed += await _compact(session, schedules, wall)
        removed += await _forget(session, [row["id"] for row in gone])
        bodies = await _remove_bodies(session, {row["body"] for row in (*doomed, *gone) if row["body"] is not None})
        notes = [row["seq"] for row in found.notes[:limit]]
        if notes:
            await session.fetch("DELETE FROM §event WHERE seq = ANY ($1::bigint[])", notes)
        leases = [row["name"] for row in found.leases[:limit]]
        if leases:
            await session.fetch("DELETE FROM §lease WHERE name = ANY ($1::text[])", leases)
        past = found.kept[:limit]
        if past:
            await session.fetch(REMOVE, [row["kind"] for row in past], [row["id"] for row in past])
        if doomed or spans or gone:
            note = LogCompacted(
                through=max(removed, default=0),
                streams=len(doomed),
                events=len(removed),
                tallies=tallies,
                digest=_digest(removed),
            )
            await _append(session, wall, [event_row(note, None, None)])
    return Purged(
        runs=len(doomed),
        events=len(removed),
        spans=len(spans),
        bodies=bodies,
        more=more,
        notes=len(notes),
        schedules=len(gone),
        leases=len(leases),
        kept=len(past),
    )


async def _removable(session: Session, policy: Retention, limit: int, wall: Ms) -> _Removable:
    before, most = policy.ended_before, limit + 1
    prefix = plain_text(policy.lease_prefix) or ""
    runs = await session.fetch(_DOOMED, before, most, False)
    if not policy.keep_dead and len(runs) < most:
        runs += await session.fetch(_DOOMED, before, most - len(runs), True)
    return _Removable(
        runs,
        await session.fetch(_SPANS, before, most),
        await session.fetch(_NOTES, before, most),
        await session.fetch(_GONE, before, most),
        await session.fetch(_PAST_LEASES, prefix, policy.leases_before, wall, most, prefix + LAST),
        await session.fetch(EXPIRED, wall, most),
    )


async def _count(session: Session, doomed: list[Any], spans: list[Any]) -> int:
    """Put down what goes, by day; how many tallies it went into."""
    tallies: Counter[tuple[str, int, str]] = Counter()
    for row in doomed:
        kind = "fire" if row["origin"] == "fire" else "adhoc"
        tallies[row["schedule_id"] or "", row["at"] // DAY_MS, f"{kind}/{row['state']}"] += 1
    for row in spans:
        tallies[row["schedule_id"], row["through"] // DAY_MS, f"span/{row['reason']}"] += row["count"]
    if tallies:
        rows = [(*key, count) for key, count in sorted(tallies.items())]
        await session.fetch(_COUNT, *arrays(rows, len(_TALLY_COLUMNS)))
    return len(tallies)


async def _remove_runs(session: Session, ids: list[str]) -> list[int]:
    """Delete runs with their streams; the numbers of the events that went."""
    if not ids:
        return []
    removed = [row["seq"] for row in await session.fetch(_DELETE_RUN_EVENTS, ids)]
    await session.fetch("DELETE FROM §run WHERE id = ANY ($1::text[])", ids)
    return removed


async def _compact(session: Session, schedules: set[str], wall: Ms) -> list[int]:
    """Replace each schedule's stream by one snapshot at the row's own number; the numbers of the events that went."""
    if not schedules:
        return []
    rows = [read_schedule(row) for row in await session.fetch(_ROWS, sorted(schedules))]
    if not rows:
        return []
    stream = [read_event(row) for row in await session.fetch(_STREAMS, [row.id for row in rows])]
    by_schedule: dict[str | None, list[Event]] = defaultdict(list)
    for event in stream:
        by_schedule[event.schedule_id].append(event)
    removed = [event.seq for event in stream]
    await session.fetch("DELETE FROM §event WHERE seq = ANY ($1::bigint[])", removed)
    snapshots = [
        ScheduleSnapshot(ns=row.ns, schedule_id=row.id, state=row, definitions=definitions(by_schedule[row.id]))
        for row in rows
    ]
    await _append(session, wall, [event_row(event, None, event.state.n) for event in snapshots])
    return removed


async def _forget(session: Session, schedules: list[str]) -> list[int]:
    """Delete schedules with their streams and gates, and keep their tallies in nobody's name; the numbers that went."""
    if not schedules:
        return []
    removed = [row["seq"] for row in await session.fetch(_STREAMS, schedules)]
    await session.fetch("DELETE FROM §event WHERE seq = ANY ($1::bigint[])", removed)
    for statement in _FORGET:
        await session.fetch(statement, schedules)
    return removed


async def _remove_bodies(session: Session, candidates: set[str]) -> int:
    if not candidates:
        return 0
    locked = [row["id"] for row in await session.fetch(_LOCK_BODIES, sorted(candidates))]
    return len(await session.fetch(_DELETE_BODIES, locked))


async def _append(session: Session, wall: Ms, rows: list[tuple[Any, ...]]) -> None:
    await session.fetch(INSERT_EVENTS, wall, *arrays(rows, len(EVENT_COLUMNS)))


def _digest(removed: list[int]) -> str:
    return hashlib.blake2b(",".join(map(str, sorted(removed))).encode(), digest_size=16).hexdigest()
