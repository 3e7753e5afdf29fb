"""Retention: whole streams go, tallies, snapshots and one note say what they were."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import msgspec

from mainspring.model.events import Event, LogCompacted, ScheduleSnapshot, definitions
from mainspring.model.instant import Ms
from mainspring.ports.store import Purged, Retention
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.find import HAS_PREFIX
from mainspring.stores.sqlite.kept import EXPIRED, REMOVE
from mainspring.stores.sqlite.rows import (
    EVENT_JSON,
    GIVEN,
    INSERT_EVENTS,
    SCHEDULE_JSON,
    event_row,
    item,
    pack,
    read_events,
    read_schedules,
)

DAY_MS = 86_400_000

#: before, limit, greatest `dead` → runs that may go, the longest ended first.
_DOOMED = """
SELECT json_group_array(json_array(rid, schedule_id, origin, ifnull(fire_time, created_at), state, body)) FROM (
    SELECT * FROM (SELECT * FROM run WHERE dead = 0 AND ended_at < ?1 AND ended_at IS NOT NULL
                   ORDER BY ended_at LIMIT ?2)
    UNION ALL
    SELECT * FROM (SELECT * FROM run WHERE dead = 1 AND ?3 = 1 AND ended_at < ?1 AND ended_at IS NOT NULL
                   ORDER BY ended_at LIMIT ?2)
    LIMIT ?2)
"""
_SPANS = """
SELECT json_group_array(json_array(rowid, schedule_id, through, reason, count)) FROM span WHERE through < ?1
"""
_RUN_EVENTS = """
SELECT json_group_array(e.seq) FROM json_each(?1) j CROSS JOIN event e WHERE e.rid = j.value AND e.rid IS NOT NULL
"""
_STREAMS = f"""
SELECT json_group_array({EVENT_JSON}) FROM (
    SELECT e.* FROM json_each(?1) j CROSS JOIN event e
    WHERE e.schedule_id = j.value AND e.rid IS NULL AND e.schedule_id IS NOT NULL AND e.n IS NOT NULL
    ORDER BY e.seq) e LEFT JOIN run r ON r.rid = e.rid
"""  # noqa: S608
_ROWS = f"""
SELECT json_group_array({SCHEDULE_JSON}) FROM (
    SELECT s.* FROM json_each(?1) j CROSS JOIN schedule s WHERE s.id = j.value ORDER BY s.id) s
"""  # noqa: S608
_ORPHANS = """
SELECT json_group_array(j.value) FROM json_each(?1) j
WHERE NOT EXISTS (SELECT 1 FROM run WHERE body = j.value AND body IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM schedule WHERE body = j.value AND body IS NOT NULL)
"""
_COUNT = f"""
{GIVEN}
INSERT INTO tally (schedule_id, day, outcome, count)
SELECT ifnull({item(0)}, ''), {item(1)}, {item(2)}, {item(3)} FROM j WHERE true
ON CONFLICT DO UPDATE SET count = count + excluded.count
"""  # noqa: S608
#: before, limit → notes that may go; the newest word of a compaction stays, the tallies rest on it.
_NOTES = """
SELECT json_group_array(seq) FROM (
    SELECT seq FROM event WHERE n IS NULL AND at < ?1 AND seq <> ifnull((
        SELECT c.seq FROM event c WHERE c.n IS NULL AND c.type = 'LogCompacted'
        ORDER BY c.at DESC, c.seq DESC LIMIT 1), 0)
    ORDER BY at LIMIT ?2)
"""
#: before, limit → deleted schedules without a run or a span.
_GONE = """
SELECT json_group_array(json_array(id, body)) FROM (
    SELECT s.id, s.body FROM schedule s
    WHERE s.state = 'deleted' AND s.updated_at < ?1
      AND NOT EXISTS (SELECT 1 FROM run r WHERE r.schedule_id = s.id AND r.schedule_id IS NOT NULL)
      AND NOT EXISTS (SELECT 1 FROM span p WHERE p.schedule_id = s.id)
    ORDER BY s.updated_at LIMIT ?2)
"""
_STREAM_NUMBERS = """
SELECT json_group_array(e.seq) FROM json_each(?1) j CROSS JOIN event e
WHERE e.schedule_id = j.value AND e.rid IS NULL AND e.schedule_id IS NOT NULL AND e.n IS NOT NULL
"""
_FORGET = (
    """INSERT INTO tally (schedule_id, day, outcome, count)
       SELECT '', t.day, t.outcome, sum(t.count) FROM tally t
       WHERE t.schedule_id IN (SELECT value FROM json_each(?1)) GROUP BY 2, 3
       ON CONFLICT DO UPDATE SET count = count + excluded.count""",
    "DELETE FROM tally WHERE schedule_id IN (SELECT value FROM json_each(?1))",
    """DELETE FROM gate_limit WHERE name IN (SELECT 'schedule:' || value FROM json_each(?1))
         AND NOT EXISTS (SELECT 1 FROM gate_held h WHERE h.name = gate_limit.name)""",
    "DELETE FROM schedule WHERE id IN (SELECT value FROM json_each(?1))",
)
_PAST_LEASES = f"""
SELECT json_group_array(name) FROM (
    SELECT name FROM lease WHERE name >= ?1 AND {HAS_PREFIX} AND renewed_at < ?2 AND (live = 0 OR expires_at <= ?3)
    LIMIT ?4)
"""  # noqa: S608
_doomed_rows = msgspec.json.Decoder(list[tuple[int, str | None, str, Ms, str, str | None]])
_span_rows = msgspec.json.Decoder(list[tuple[int, str, Ms, str, int]])
_numbers = msgspec.json.Decoder(list[int])
_texts = msgspec.json.Decoder(list[str])
_kept_keys = msgspec.json.Decoder(list[tuple[str, str]])
_gone_rows = msgspec.json.Decoder(list[tuple[str, str | None]])


def purge(db: Database, policy: Retention, limit: int, now: Ms | None) -> Purged:
    """Remove what retention allows, at most `limit` of each kind; all of it one transaction."""
    wall, lease_now = db.clocks(now)
    with db.read():
        if not any(_removable(db, policy, 1, wall, lease_now)):
            return Purged()
    with db.write("purge"):
        found = _removable(db, policy, limit, wall, lease_now)
        more = any(len(rows) > limit for rows in (found.runs, found.notes, found.schedules, found.leases, found.kept))
        doomed, gone, spans = found.runs[:limit], found.schedules[:limit], found.spans
        tallies: Counter[tuple[str | None, int, str]] = Counter()
        for _, schedule_id, origin, at, state, _ in doomed:
            tallies[schedule_id, at // DAY_MS, f"{'fire' if origin == 'fire' else 'adhoc'}/{state}"] += 1
        for _, schedule_id, through, reason, count in spans:
            tallies[schedule_id, through // DAY_MS, f"span/{reason}"] += count
        schedules = {row[1] for row in doomed if row[1] is not None} | {row[1] for row in spans}
        db.run(_COUNT, pack([(*key, count) for key, count in tallies.items()]))
        removed = _remove_runs(db, [row[0] for row in doomed])
        db.run("DELETE FROM span WHERE rowid IN (SELECT value FROM json_each(?1))", pack([row[0] for row in spans]))
        removed += _compact(db, schedules, wall) + _forget(db, [schedule_id for schedule_id, _ in gone])
        bodies = _remove_bodies(db, {body for body in (*(row[5] for row in doomed), *(row[1] for row in gone)) if body})
        db.run("DELETE FROM event WHERE seq IN (SELECT value FROM json_each(?1))", pack(found.notes[:limit]))
        db.run("DELETE FROM lease WHERE name IN (SELECT value FROM json_each(?1))", pack(found.leases[:limit]))
        db.run(REMOVE, pack(found.kept[:limit]))
        if doomed or spans or gone:
            note = LogCompacted(
                through=max(removed, default=0),
                streams=len(doomed),
                events=len(removed),
                tallies=len(tallies),
                digest=_digest(removed),
            )
            db.run_rows(INSERT_EVENTS, [event_row(note, None, None, None)], wall)
    return Purged(
        runs=len(doomed),
        events=len(removed),
        spans=len(spans),
        bodies=bodies,
        more=more,
        notes=len(found.notes[:limit]),
        schedules=len(gone),
        leases=len(found.leases[:limit]),
        kept=len(found.kept[:limit]),
    )


class _Removable(NamedTuple):
    """What may go; of each kind one more than asked for when there is more."""

    runs: list[Any]
    spans: list[Any]
    notes: list[int]
    schedules: list[tuple[str, str | None]]
    leases: list[str]
    kept: list[tuple[str, str]]


def _removable(db: Database, policy: Retention, limit: int, wall: Ms, lease_now: Ms) -> _Removable:
    before = policy.ended_before
    past = db.value(_PAST_LEASES, policy.lease_prefix, policy.leases_before, lease_now, limit + 1)
    return _Removable(
        _doomed_rows.decode(db.value(_DOOMED, before, limit + 1, 0 if policy.keep_dead else 1)),
        _span_rows.decode(db.value(_SPANS, before)),
        _numbers.decode(db.value(_NOTES, before, limit + 1)),
        _gone_rows.decode(db.value(_GONE, before, limit + 1)),
        _texts.decode(past),
        _kept_keys.decode(db.value(EXPIRED, wall, limit + 1)),
    )


def _forget(db: Database, schedules: list[str]) -> list[int]:
    """Delete schedules with their streams and gates, and keep their tallies in nobody's name; the numbers that went."""
    if not schedules:
        return []
    text = pack(schedules)
    removed = _numbers.decode(db.value(_STREAM_NUMBERS, text))
    db.run("DELETE FROM event WHERE seq IN (SELECT value FROM json_each(?1))", pack(removed))
    for statement in _FORGET:
        db.run(statement, text)
    return removed


def _remove_runs(db: Database, rids: list[int]) -> list[int]:
    """Delete runs with their streams; the numbers of the events that went."""
    text = pack(rids)
    removed = _numbers.decode(db.value(_RUN_EVENTS, text))
    db.run("DELETE FROM event WHERE seq IN (SELECT value FROM json_each(?1))", pack(removed))
    db.run("DELETE FROM run WHERE rid IN (SELECT value FROM json_each(?1))", text)
    return removed


def _remove_bodies(db: Database, candidates: set[str]) -> int:
    orphans = _texts.decode(db.value(_ORPHANS, pack(list(candidates)))) if candidates else []
    if orphans:
        db.run("DELETE FROM body WHERE id IN (SELECT value FROM json_each(?1))", pack(orphans))
    return len(orphans)


def _compact(db: Database, schedules: set[str], wall: Ms) -> list[int]:
    """Replace each schedule's stream by one snapshot at the row's own number; the numbers of the events that went."""
    rows = read_schedules(db.value(_ROWS, pack(list(schedules)))) if schedules else []
    if not rows:
        return []
    stream = read_events(db.value(_STREAMS, pack([row.id for row in rows])))
    by_schedule: dict[str | None, list[Event]] = defaultdict(list)
    for event in stream:
        by_schedule[event.schedule_id].append(event)
    removed = [event.seq for event in stream]
    db.run("DELETE FROM event WHERE seq IN (SELECT value FROM json_each(?1))", pack(removed))
    snapshots = [
        event_row(
            ScheduleSnapshot(ns=row.ns, schedule_id=row.id, state=row, definitions=definitions(by_schedule[row.id])),
            None,
            None,
            row.n,
        )
        for row in rows
    ]
    db.run_rows(INSERT_EVENTS, snapshots, wall)
    return removed


def _digest(removed: list[int]) -> str:
    return hashlib.blake2b(",".join(map(str, sorted(removed))).encode(), digest_size=16).hexdigest()
