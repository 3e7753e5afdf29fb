"""The store's `purge`: delete what `rules/retention.py` allows, and keep tallies (counts of deleted rows) instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.find import HAS_PREFIX
from mainspring.backends.sqlite.keyvalue import EXPIRED_ENTRIES, REMOVE
from mainspring.backends.sqlite.rows import (
    EVENT_JSON,
    INSERT_EVENTS,
    SCHEDULE_JSON,
    WITH_ROWS,
    event_row,
    item,
    pack,
    read_events,
    read_schedules,
)
from mainspring.backends.sqlite.run_logs import remove_logs
from mainspring.model.gate import SCHEDULE_GATE_PREFIX
from mainspring.model.ids import ScheduleId
from mainspring.model.instant import Ms
from mainspring.model.retention import Purged, Retention
from mainspring.rules.retention import (
    Removable,
    RemovedRun,
    RemovedSpan,
    compaction_note,
    count_tallies,
    schedules_to_compact,
    snapshot_schedules,
)

#: Parameters: instant before which the runs ended, number of rows, 1 to include dead letters. Returns rows of `_Run`,
#: the runs that ended first, and dead letters only after all other runs.
_REMOVABLE_RUNS = """
SELECT json_group_array(json_array(rid, schedule_id, origin, ifnull(fire_time, created_at), state, body)) FROM (
    SELECT * FROM (SELECT * FROM run WHERE dead = 0 AND ended_at < ?1 AND ended_at IS NOT NULL
                   ORDER BY ended_at LIMIT ?2)
    UNION ALL
    SELECT * FROM (SELECT * FROM run WHERE dead = 1 AND ?3 = 1 AND ended_at < ?1 AND ended_at IS NOT NULL
                   ORDER BY ended_at LIMIT ?2)
    LIMIT ?2)
"""
#: Parameter: instant before which the spans end. Returns rows of `_Span`.
_REMOVABLE_SPANS = """
SELECT json_group_array(json_array(rowid, schedule_id, through, reason, count)) FROM span WHERE through < ?1
"""
#: Parameter: row numbers of runs. Returns the numbers of their events in the log.
_RUN_EVENTS = """
SELECT json_group_array(e.seq) FROM json_each(?1) j CROSS JOIN event e WHERE e.rid = j.value AND e.rid IS NOT NULL
"""
#: Parameter: row numbers of runs. Returns their ids.
_RUN_IDS = "SELECT json_group_array(r.id) FROM json_each(?1) j CROSS JOIN run r ON r.rid = j.value"
#: Parameter: schedule ids. Returns the schedules' own events, without those of their runs, in the order of the log.
_STREAMS = f"""
SELECT json_group_array({EVENT_JSON}) FROM (
    SELECT e.* FROM json_each(?1) j CROSS JOIN event e
    WHERE e.schedule_id = j.value AND e.rid IS NULL AND e.schedule_id IS NOT NULL AND e.n IS NOT NULL
    ORDER BY e.seq) e LEFT JOIN run r ON r.rid = e.rid
"""  # noqa: S608
#: Parameter: schedule ids. Returns the schedules' rows.
_ROWS = f"""
SELECT json_group_array({SCHEDULE_JSON}) FROM (
    SELECT s.* FROM json_each(?1) j CROSS JOIN schedule s WHERE s.id = j.value ORDER BY s.id) s
"""  # noqa: S608
#: Parameter: payload ids. Returns those that no run and no schedule names.
_ORPHANS = """
SELECT json_group_array(j.value) FROM json_each(?1) j
WHERE NOT EXISTS (SELECT 1 FROM run WHERE body = j.value AND body IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM schedule WHERE body = j.value AND body IS NOT NULL)
"""
#: Rows: [schedule or NULL, day, outcome, count].
_ADD_TALLIES = f"""
{WITH_ROWS}
INSERT INTO tally (schedule_id, day, outcome, count)
SELECT ifnull({item(0)}, ''), {item(1)}, {item(2)}, {item(3)} FROM j WHERE true
ON CONFLICT DO UPDATE SET count = count + excluded.count
"""  # noqa: S608
#: Parameters: instant, number of rows. Returns the numbers of older events that belong to no run and no schedule. The
#: newest LogCompacted is left out, because it explains the tallies.
_REMOVABLE_NOTES = """
SELECT json_group_array(seq) FROM (
    SELECT seq FROM event WHERE n IS NULL AND at < ?1 AND seq <> ifnull((
        SELECT c.seq FROM event c WHERE c.n IS NULL AND c.type = 'LogCompacted'
        ORDER BY c.at DESC, c.seq DESC LIMIT 1), 0)
    ORDER BY at LIMIT ?2)
"""
#: Parameters: instant before which the rows were changed last, number of rows. Returns rows of `_Schedule`: deleted
#: schedules of which neither run nor span is left.
_REMOVABLE_SCHEDULES = """
SELECT json_group_array(json_array(id, body)) FROM (
    SELECT s.id, s.body FROM schedule s
    WHERE s.state = 'deleted' AND s.updated_at < ?1
      AND NOT EXISTS (SELECT 1 FROM run r WHERE r.schedule_id = s.id AND r.schedule_id IS NOT NULL)
      AND NOT EXISTS (SELECT 1 FROM span p WHERE p.schedule_id = s.id)
    ORDER BY s.updated_at LIMIT ?2)
"""
#: Parameter: schedule ids. Returns the numbers in the log of the schedules' own events.
_STREAM_NUMBERS = """
SELECT json_group_array(e.seq) FROM json_each(?1) j CROSS JOIN event e
WHERE e.schedule_id = j.value AND e.rid IS NULL AND e.schedule_id IS NOT NULL AND e.n IS NOT NULL
"""
#: Statements with schedule ids as parameter: add the tallies of the schedules to those of no schedule and delete them,
#: delete the schedules' own gates that no run holds, delete the schedules.
_REMOVE_SCHEDULES = (
    """INSERT INTO tally (schedule_id, day, outcome, count)
       SELECT '', t.day, t.outcome, sum(t.count) FROM tally t
       WHERE t.schedule_id IN (SELECT value FROM json_each(?1)) GROUP BY 2, 3
       ON CONFLICT DO UPDATE SET count = count + excluded.count""",
    "DELETE FROM tally WHERE schedule_id IN (SELECT value FROM json_each(?1))",
    f"""DELETE FROM gate_limit WHERE name IN (SELECT '{SCHEDULE_GATE_PREFIX}' || value FROM json_each(?1))
         AND NOT EXISTS (SELECT 1 FROM gate_held h WHERE h.name = gate_limit.name)""",  # noqa: S608 - a constant
    "DELETE FROM schedule WHERE id IN (SELECT value FROM json_each(?1))",
)
#: Parameters: prefix of names, instant before which the leases were renewed last, lease time, number of rows. Returns
#: the names of leases that have ended.
_REMOVABLE_LEASES = f"""
SELECT json_group_array(name) FROM (
    SELECT name FROM lease WHERE name >= ?1 AND {HAS_PREFIX} AND renewed_at < ?2 AND (live = 0 OR expires_at <= ?3)
    LIMIT ?4)
"""  # noqa: S608


class _Run(NamedTuple):
    """A run to remove. `rid`: its row number. `at`: its fire time or, if it has none, its creation.

    `body`: the id of its payload, or None.
    """

    rid: int
    schedule_id: ScheduleId | None
    origin: str
    at: Ms
    state: str
    body: str | None


class _Span(NamedTuple):
    """A span to remove. `rowid`: its row number. `through`: the end of its range. `fires`: how many fires it covers."""

    rowid: int
    schedule_id: ScheduleId
    through: Ms
    reason: str
    fires: int


class _Schedule(NamedTuple):
    """A deleted schedule to remove. `body`: the id of its payload, or None."""

    id: ScheduleId
    body: str | None


_runs = msgspec.json.Decoder(list[_Run])
_spans = msgspec.json.Decoder(list[_Span])
_schedules = msgspec.json.Decoder(list[_Schedule])
_numbers = msgspec.json.Decoder(list[int])
_texts = msgspec.json.Decoder(list[str])
_keys = msgspec.json.Decoder(list[tuple[str, str]])


def purge(db: Database, policy: Retention, limit: int, now: Ms | None) -> Purged:
    """Remove what the policy allows, in one transaction: all such spans and up to `limit` rows of each other kind.

    Return the numbers of removed rows. If nothing can be removed, no write transaction is begun. `now`: the time to
    use, for tests; None: what the clock shows.
    """
    wall, lease_now = db.clocks(now)
    with db.read():
        found, spans = _find_removable(db, policy, 1, wall, lease_now)
        if not (spans or any(found)):
            return Purged()
    with db.write("purge"):
        found, spans = _find_removable(db, policy, limit, wall, lease_now)
        rows = found.first(limit)
        removed, bodies = _compact(db, rows, spans, wall)
        _delete_events(db, rows.notes)
        db.run("DELETE FROM lease WHERE name IN (SELECT value FROM json_each(?1))", pack(rows.leases))
        db.run(REMOVE, pack(rows.kept))
    return rows.report(events=len(removed), spans=len(spans), bodies=bodies, more=found.exceeds(limit))


def _find_removable(
    db: Database, policy: Retention, limit: int, wall: Ms, lease_now: Ms
) -> tuple[Removable, list[_Span]]:
    """Return up to `limit` + 1 removable rows of each kind, and all removable spans.

    The row beyond `limit` shows that a further call of `purge` has work to do. `wall`: the present time. `lease_now`:
    the present time by the clock of leases.
    """
    before = policy.ended_before
    past = db.value(_REMOVABLE_LEASES, policy.lease_prefix, policy.leases_before, lease_now, limit + 1)
    found = Removable(
        runs=_runs.decode(db.value(_REMOVABLE_RUNS, before, limit + 1, 0 if policy.keep_dead else 1)),
        notes=_numbers.decode(db.value(_REMOVABLE_NOTES, before, limit + 1)),
        schedules=_schedules.decode(db.value(_REMOVABLE_SCHEDULES, before, limit + 1)),
        leases=_texts.decode(past),
        kept=_keys.decode(db.value(EXPIRED_ENTRIES, wall, limit + 1)),
    )
    return found, _spans.decode(db.value(_REMOVABLE_SPANS, before))


def _compact(db: Database, rows: Removable, spans: list[_Span], wall: Ms) -> tuple[list[int], int]:
    """Remove runs, spans and deleted schedules, with their events and unused payloads.

    Write instead: tallies (counts of removed rows), a snapshot of each schedule concerned, and a LogCompacted event.
    Return the numbers (in the log) of the deleted events, and how many payloads were deleted. `wall`: the present time.
    """
    removed_runs = [RemovedRun(row.schedule_id, row.origin, row.at, row.state) for row in rows.runs]
    removed_spans = [RemovedSpan(row.schedule_id, row.through, row.reason, row.fires) for row in spans]
    tallies = count_tallies(removed_runs, removed_spans)
    db.run(_ADD_TALLIES, pack([(*key, count) for key, count in tallies.items()]))
    removed = _remove_runs(db, [row.rid for row in rows.runs])
    db.run("DELETE FROM span WHERE rowid IN (SELECT value FROM json_each(?1))", pack([row.rowid for row in spans]))
    removed += _compact_streams(db, schedules_to_compact(removed_runs, removed_spans), wall)
    removed += _remove_schedules(db, [row.id for row in rows.schedules])
    bodies = _remove_bodies(db, {row.body for row in (*rows.runs, *rows.schedules) if row.body})
    if rows.runs or spans or rows.schedules:
        note = compaction_note(removed, runs=len(rows.runs), tallies=len(tallies))
        db.run_rows(INSERT_EVENTS, [event_row(note, None, None, None)], wall)
    return removed, bodies


def _remove_runs(db: Database, rids: list[int]) -> list[int]:
    """Delete runs, given by row number, with their events and logs; return the numbers of the deleted events."""
    text = pack(rids)
    removed = _numbers.decode(db.value(_RUN_EVENTS, text))
    _delete_events(db, removed)
    remove_logs(db, _texts.decode(db.value(_RUN_IDS, text)))
    db.run("DELETE FROM run WHERE rid IN (SELECT value FROM json_each(?1))", text)
    return removed


def _compact_streams(db: Database, schedules: Sequence[ScheduleId], wall: Ms) -> list[int]:
    """Replace the own events of each schedule that exists by one snapshot; return the numbers of the deleted events.

    Events of the schedule's runs are not replaced. `wall`: the present time.
    """
    rows = read_schedules(db.value(_ROWS, pack(schedules))) if schedules else []
    if not rows:
        return []
    stream = read_events(db.value(_STREAMS, pack([row.id for row in rows])))
    removed = [event.seq for event in stream]
    _delete_events(db, removed)
    snapshots = snapshot_schedules(rows, stream)
    db.run_rows(INSERT_EVENTS, [event_row(one, None, None, one.state.n) for one in snapshots], wall)
    return removed


def _remove_schedules(db: Database, schedules: list[ScheduleId]) -> list[int]:
    """Delete schedules with their events and own gates; return the numbers of the deleted events.

    A gate that a run holds stays. The schedules' tallies (counts of removed rows) are added to those without a
    schedule.
    """
    if not schedules:
        return []
    text = pack(schedules)
    removed = _numbers.decode(db.value(_STREAM_NUMBERS, text))
    _delete_events(db, removed)
    for statement in _REMOVE_SCHEDULES:
        db.run(statement, text)
    return removed


def _remove_bodies(db: Database, candidates: set[str]) -> int:
    """Delete the payloads with the ids `candidates` to which no row refers any more; return how many were deleted."""
    orphans = _texts.decode(db.value(_ORPHANS, pack(list(candidates)))) if candidates else []
    if orphans:
        db.run("DELETE FROM body WHERE id IN (SELECT value FROM json_each(?1))", pack(orphans))
    return len(orphans)


def _delete_events(db: Database, numbers: list[int]) -> None:
    db.run("DELETE FROM event WHERE seq IN (SELECT value FROM json_each(?1))", pack(numbers))
