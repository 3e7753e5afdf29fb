"""Retention: whole streams go, tallies, snapshots and one note say what they were."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from typing import Any

import msgspec

from mainspring.model.events import Event, LogCompacted, ScheduleSnapshot, definitions
from mainspring.model.instant import Ms
from mainspring.ports.store import Purged, Retention
from mainspring.stores.sqlite.database import Database
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
_doomed_rows = msgspec.json.Decoder(list[tuple[int, str | None, str, Ms, str, str | None]])
_span_rows = msgspec.json.Decoder(list[tuple[int, str, Ms, str, int]])
_numbers = msgspec.json.Decoder(list[int])
_texts = msgspec.json.Decoder(list[str])


def purge(db: Database, policy: Retention, limit: int, now: Ms | None) -> Purged:
    """Remove what retention allows, at most `limit` runs; all of it one transaction."""
    wall, _ = db.clocks(now)
    with db.read():
        doomed, spans = _removable(db, policy, limit)
    if not doomed and not spans:
        return Purged()
    with db.write("purge"):
        doomed, spans = _removable(db, policy, limit)
        more, doomed = len(doomed) > limit, doomed[:limit]
        tallies: Counter[tuple[str | None, int, str]] = Counter()
        for _, schedule_id, origin, at, state, _ in doomed:
            tallies[schedule_id, at // DAY_MS, f"{'fire' if origin == 'fire' else 'adhoc'}/{state}"] += 1
        for _, schedule_id, through, reason, count in spans:
            tallies[schedule_id, through // DAY_MS, f"span/{reason}"] += count
        schedules = {row[1] for row in doomed if row[1] is not None} | {row[1] for row in spans}
        db.run(_COUNT, pack([(*key, count) for key, count in tallies.items()]))
        removed = _remove_runs(db, [row[0] for row in doomed])
        db.run("DELETE FROM span WHERE rowid IN (SELECT value FROM json_each(?1))", pack([row[0] for row in spans]))
        bodies = _remove_bodies(db, {row[5] for row in doomed if row[5] is not None})
        removed += _compact(db, schedules, wall)
        note = LogCompacted(
            through=max(removed, default=0),
            streams=len(doomed),
            events=len(removed),
            tallies=db.value("SELECT count(*) FROM tally"),
            digest=_digest(removed),
        )
        db.run_rows(INSERT_EVENTS, [event_row(note, None, None, None)], wall)
    return Purged(len(doomed), len(removed), len(spans), bodies, more)


def _removable(db: Database, policy: Retention, limit: int) -> tuple[list[Any], list[Any]]:
    doomed = db.value(_DOOMED, policy.ended_before, limit + 1, 0 if policy.keep_dead else 1)
    return _doomed_rows.decode(doomed), _span_rows.decode(db.value(_SPANS, policy.ended_before))


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
