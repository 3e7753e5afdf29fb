"""The statements of `apply`. The comment above each names the values of a row, in order, and other parameters.

"Rows" come as one JSON array of arrays (`WITH_ROWS`), "bound rows" value by value (`BOUND_ROWS`). Parameters named
before bound rows come before them.

A mark is a number that a change writes into the column `mark` of its rows. A row that has this number afterwards was
written by this change, so the guard held. The changes that a fast path writes share one mark.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.backends.sqlite.rows import BOUND_ROWS, RUN_JSON, SCHEDULE_JSON, WITH_ROWS, column, item
from mainspring.model.schedule import Schedule

_OPEN_STATES_SQL = "('blocked', 'waiting', 'running', 'retrying')"
_STILL_RUNNING = f"{item(4)} = 'running'"

#: Assignments of a guarded run. In the comments below, "values…" stands for the values from state to dead, in order.
_VALUES = f"""mark = {item(2)}, n = r.n + {item(3)}, state = {item(4)}, ready_at = {item(5)},
    failures = {item(6)}, crashes = {item(7)}, reason = {item(8)}, result = {item(9)}, error = {item(10)},
    began_at = {item(11)}, ms = {item(12)}, dead = {item(13)}"""
_HELD = f"r.id = {item(0)} AND r.state = 'running' AND r.epoch = {item(1)}"

#: Rows: [id, epoch, mark, number of events, values…, ended_at]. Runs running under the epoch end or wait again.
END_ATTEMPTS = f"""
{WITH_ROWS}
UPDATE run AS r SET {_VALUES}, ended_at = {item(14)},
    owner = NULL, lease_until = NULL, parked_on = NULL, progress = NULL
FROM j WHERE {_HELD}
"""  # noqa: S608 - positions, no input

#: Rows: [id, epoch, mark, number of events, values…]. Runs that are running under the epoch go on running.
KEEP_RUNNING = f"{WITH_ROWS} UPDATE run AS r SET {_VALUES}, ended_at = NULL FROM j WHERE {_HELD}"  # noqa: S608


def _succeed(began_at: str, ms: str, result: str, mark: str, wall: str) -> str:
    """Return an UPDATE without FROM and WHERE, which ends runs as succeeded; the arguments are SQL for the values."""
    return f"""
UPDATE run AS r SET mark = {mark}, n = r.n + 1, state = 'succeeded', reason = NULL, error = NULL, result = {result},
    began_at = {began_at}, ms = {ms}, ended_at = {wall},
    owner = NULL, lease_until = NULL, parked_on = NULL, progress = NULL"""  # noqa: S608


#: Mark, ended_at, then bound rows: [rid, epoch, began_at, ms, result]. Plain successes of runs claimed by this store.
SUCCEED_RUNS = f"""
{_succeed(column(2), column(3), column(4), "?1", "?2")}
FROM {BOUND_ROWS} WHERE r.rid = {column(0)} AND r.state = 'running' AND r.epoch = {column(1)}
"""
#: Row numbers, mark, ended_at, epoch, began_at, ms, result. Plain successes of runs with equal values. Without a FROM,
#: SQLite updates each row where it finds it; with one, it first collects all rows in a temporary table.
SUCCEED_GROUP = f"""
{_succeed("?5", "?6", "?7", "?2", "?3")}
WHERE r.rid IN (SELECT value FROM json_each(?1)) AND r.state = 'running' AND r.epoch = ?4
"""  # noqa: S608
#: Row numbers of runs, mark. Returns the row numbers of the runs whose row has the mark.
SUCCEEDED_RUNS = (
    "SELECT json_group_array(r.rid) FROM json_each(?1) j CROSS JOIN run r WHERE r.rid = j.value AND r.mark = ?2"
)
#: JSON object with the change's id for each row number; at; owner. The events' other values are read from the runs.
INSERT_SUCCEEDED_EVENTS = """
INSERT INTO event (at, ns, schedule_id, rid, n, type, v, change, epoch, attempt, owner, data)
SELECT ?2, r.ns, r.schedule_id, r.rid, r.n, 'RunSucceeded', 1, j.value, r.epoch, r.attempt, ?3,
       iif(r.result IS NULL, '{"began_at":' || r.began_at || ',"ms":' || r.ms || '}',
           json_object('began_at', r.began_at, 'ms', r.ms, 'result', r.result))
FROM json_each(?1) j CROSS JOIN run r WHERE r.rid = CAST(j.key AS INTEGER)
"""

#: Rows: [id, n, mark, number of events, values…, cancel, ns, unique key]; ended_at. Runs whose `n` is as expected. A
#: run is not re-opened if an open run has taken its unique key meanwhile.
UPDATE_AT = f"""
{WITH_ROWS}
UPDATE run AS r SET {_VALUES}, cancel = {item(14)},
    ended_at = CASE WHEN {item(4)} NOT IN {_OPEN_STATES_SQL} THEN ifnull(r.ended_at, ?2) END,
    owner = CASE WHEN {_STILL_RUNNING} THEN r.owner END,
    lease_until = CASE WHEN {_STILL_RUNNING} THEN r.lease_until END,
    parked_on = CASE WHEN {_STILL_RUNNING} THEN r.parked_on END,
    progress = CASE WHEN {_STILL_RUNNING} THEN r.progress END
FROM j
WHERE r.id = {item(0)} AND r.n = {item(1)} AND (
    {item(16)} IS NULL OR {item(4)} NOT IN {_OPEN_STATES_SQL} OR r.ended_at IS NULL OR NOT EXISTS (
        SELECT 1 FROM run o WHERE o.ns = {item(15)} AND o.unique_key = {item(16)}
          AND o.unique_key IS NOT NULL AND o.ended_at IS NULL))
"""  # noqa: S608

#: Rows: [id, mark, body]. Why not a part of `UPDATE_AT`: writing an unchanged payload would rewrite its index entry.
UPDATE_BODIES = f"""
{WITH_ROWS}
UPDATE run AS r SET body = {item(2)} FROM j
WHERE r.id = {item(0)} AND r.mark = {item(1)} AND r.body IS NOT {item(2)}
"""  # noqa: S608

#: Rows: [id, mark]. Returns [mark, n] of the runs whose row has the mark.
MARKED_RUNS = f"""
{WITH_ROWS}
SELECT json_group_array(json_array(r.mark, r.n)) FROM j CROSS JOIN run r
WHERE r.id = {item(0)} AND r.mark = {item(1)}
"""  # noqa: S608


def _inserted_by(change: int, runs: int) -> str:
    """Return an SQL condition that is true if a run which a change inserts exists and has an event of this change.

    Then the change was accepted before.

    `change`, `runs`: indexes, in the statement's JSON row, of the change's id and of the list of its new runs' ids.
    """
    return f"""EXISTS (SELECT 1 FROM json_each({item(runs)}) i CROSS JOIN run o CROSS JOIN event e
                       WHERE o.id = i.value AND e.rid = o.rid AND e.rid IS NOT NULL AND e.change = {item(change)})"""  # noqa: S608


#: Rows: [index, id, ns, unique key, change, schedule, fire key, ids of new runs]. Returns [index, whether the change
#: was accepted before, run]. The run has the id, or is open and has the unique key, or is of the fire.
REFUSED_RUNS = f"""
{WITH_ROWS}
SELECT json_group_array(json_array({item(0)},
       EXISTS (SELECT 1 FROM event e WHERE e.rid = r.rid AND e.rid IS NOT NULL AND e.change = {item(4)})
       OR {_inserted_by(4, 7)}, {RUN_JSON}))
FROM j CROSS JOIN run r
WHERE r.rid = ifnull((SELECT o.rid FROM run o WHERE o.id = {item(1)}), ifnull(
    (SELECT o.rid FROM run o WHERE o.ns = {item(2)} AND o.unique_key = {item(3)}
       AND o.unique_key IS NOT NULL AND o.ended_at IS NULL),
    (SELECT o.rid FROM run o WHERE o.schedule_id = {item(5)} AND o.fire_key = {item(6)}
       AND o.schedule_id IS NOT NULL)))
"""  # noqa: S608

#: At, then bound rows: [ns, schedule, rid, id, v, actor, change, data]. The first events of new runs.
INSERT_SCHEDULED_EVENTS = f"""
INSERT INTO event (at, ns, schedule_id, rid, run_ref, n, type, v, actor, change, data)
SELECT ?1, {column(0)}, {column(1)}, {column(2)}, {column(3)}, 1, 'RunScheduled', {", ".join(map(column, range(4, 8)))}
FROM {BOUND_ROWS} WHERE {column(2)} IS NOT NULL
"""  # noqa: S608

#: At, ns, schedule, rid, id, v, actor, change, data. The first event of one new run.
INSERT_SCHEDULED_EVENT = """
INSERT INTO event (at, ns, schedule_id, rid, run_ref, n, type, v, actor, change, data)
VALUES (?1, ?2, ?3, ?4, ?5, 1, 'RunScheduled', ?6, ?7, ?8, ?9)
"""

#: Row number before the first, last row number, mark. Deletes runs that were inserted just now. Why the mark is needed:
#: INSERT OR IGNORE uses up a number for a row that it skips, so older runs may be among these numbers.
DELETE_NEW_RUNS = "DELETE FROM run WHERE rid > ?1 AND rid <= ?2 AND mark = ?3"

# ── schedules ───────────────────────────────────────────────────────────────

#: Columns that only a new revision or declaration of a schedule changes.
_DEFINITION = ("ns", "name", "owner", "origin", "app", "version", "digest", "spec", "body")
#: The other columns that a change sets. Plans change some of them.
_POSITION = ("state", "revision", "anchor", "cursor", "next_at", "fired", "reason", "until", "rewound")
_COLUMNS = ("id", "mark", "event_count", *_DEFINITION, *_POSITION)
_I = {name: item(i) for i, name in enumerate(_COLUMNS)}
_END = len(_COLUMNS)
_MARK = _I["mark"]
_encoder = msgspec.json.Encoder()


def schedule_values(schedule: Schedule, mark: int, event_count: int) -> list[Any]:
    """Return the values that rows of `UPDATE_SCHEDULES` and `INSERT_SCHEDULES` begin with; the caller adds the guard's.

    `mark`: the number for the schedule's column `mark`. `event_count`: how many events of the change are of the
    schedule.
    """
    s = schedule
    spec = _encoder.encode(s.spec).decode()
    definition = (s.ns, s.name, s.owner, s.origin, s.app, s.version, s.digest, spec, s.spec.body)
    position = (s.state, s.revision, s.anchor, s.cursor, s.next_at, s.fired, s.reason, s.until, s.rewound)
    return [s.id, mark, event_count, *definition, *position]


#: Rows: [`schedule_values`…, revision, cursor, n, touched, old name]; now. Schedules that are as the caller saw them.
#: With an old name, which `REDEFINE_SCHEDULES` replaces, no other schedule may have the new one.
UPDATE_SCHEDULES = f"""
{WITH_ROWS}
UPDATE schedule AS s SET
    mark = {_MARK}, n = s.n + {_I["event_count"]}, {", ".join(f"{name} = {_I[name]}" for name in _POSITION)},
    updated_at = CASE WHEN {_I["event_count"]} > 0 THEN ?2 ELSE s.updated_at END,
    touched = CASE WHEN s.touched = {item(_END + 3)} THEN 0 ELSE s.touched END
FROM j
WHERE s.id = {_I["id"]} AND s.revision = {item(_END)} AND s.cursor = {item(_END + 1)} AND s.n = {item(_END + 2)}
  AND ({item(_END + 4)} IS NULL OR NOT EXISTS (
    SELECT 1 FROM schedule o WHERE o.ns = {_I["ns"]} AND o.name = {_I["name"]} AND o.state <> 'deleted'))
"""  # noqa: S608

#: Condition: `s` is the schedule of a bound row [sid or NULL, id, revision, cursor, n, …], is as the caller read it,
#: and is not touched. The sid (row number), which `due` has read, spares a search by id.
_IS_AS_SEEN = f"""s.sid = ifnull({column(0)}, (SELECT o.sid FROM schedule o WHERE o.id = {column(1)}))
  AND s.id = {column(1)} AND s.revision = {column(2)} AND s.cursor = {column(3)} AND s.n = {column(4)}
  AND s.touched = 0"""  # noqa: S608
#: Mark, then bound rows: […, new cursor, next_at, fired, state, anchor, reason, until]. Schedules that only advance.
#: The last four values must be those in the row: columns that are not set need no write of their indexes.
MOVE_SCHEDULES = f"""
UPDATE schedule AS s SET mark = ?1, cursor = {column(5)}, next_at = {column(6)}, fired = {column(7)} FROM {BOUND_ROWS}
WHERE {_IS_AS_SEEN} AND s.state = {column(8)} AND s.anchor = {column(9)}
  AND s.reason IS {column(10)} AND s.until IS {column(11)}
"""  # noqa: S608
#: Mark, now, then bound rows: […, new cursor, fired, anchor, new reason, until]. Schedules that finish.
FINISH_SCHEDULES = f"""
UPDATE schedule AS s SET mark = ?1, n = s.n + 1, updated_at = ?2, state = 'finished', next_at = NULL,
    cursor = {column(5)}, fired = {column(6)}, reason = {column(8)} FROM {BOUND_ROWS}
WHERE {_IS_AS_SEEN} AND s.anchor = {column(7)} AND s.until IS {column(9)}
"""  # noqa: S608
#: At, then bound rows: [ns, schedule, rid, id, n, type, v, actor, change, data]. Events of plans:
#: RunScheduled, and ScheduleFinished with NULL for rid and id.
INSERT_PLAN_EVENTS = f"""
INSERT INTO event (at, ns, schedule_id, rid, run_ref, n, type, v, actor, change, data)
SELECT ?1, {", ".join(map(column, range(10)))} FROM {BOUND_ROWS} WHERE {column(1)} IS NOT NULL
"""  # noqa: S608
#: Ids, mark. Returns the ids of the schedules whose row has the mark.
MOVED_SCHEDULE_IDS = (
    "SELECT json_group_array(s.id) FROM json_each(?1) j CROSS JOIN schedule s WHERE s.id = j.value AND s.mark = ?2"
)

#: Rows as for `UPDATE_SCHEDULES`, which is executed before. Writes the definitions of schedules whose row has the mark
#: and another definition.
REDEFINE_SCHEDULES = f"""
{WITH_ROWS}
UPDATE schedule AS s SET {", ".join(f"{name} = {_I[name]}" for name in _DEFINITION)} FROM j
WHERE s.id = {_I["id"]} AND s.mark = {_MARK} AND ({" OR ".join(f"s.{name} IS NOT {_I[name]}" for name in _DEFINITION)})
"""  # noqa: S608

#: Rows: [`schedule_values`…, id, ns, name]; now. Inserts schedules whose id is new, and whose name no other schedule
#: has that is not deleted.
INSERT_SCHEDULES = f"""
{WITH_ROWS}
INSERT OR IGNORE INTO schedule (id, mark, n, {", ".join((*_DEFINITION, *_POSITION))}, created_at, updated_at)
SELECT {", ".join(_I[name] for name in _COLUMNS)}, ?2, ?2 FROM j
WHERE NOT EXISTS (SELECT 1 FROM schedule o WHERE o.id = {item(_END)})
  AND NOT EXISTS (SELECT 1 FROM schedule o
                  WHERE o.ns = {item(_END + 1)} AND o.name = {item(_END + 2)} AND o.state <> 'deleted')
"""  # noqa: S608

#: Columns whose values differ between new schedules, and columns whose values are mostly equal.
OWN_VALUES = ("id", "name", "digest", "spec", "body", "next_at")
SHARED_VALUES = tuple(name for name in (*_DEFINITION, *_POSITION) if name not in OWN_VALUES)
#: Now, mark, the shared values, then bound rows of own values. A schedule that exists, by id or name, is skipped.
INSERT_BOUND_SCHEDULES = f"""
INSERT OR IGNORE INTO schedule ({", ".join((*OWN_VALUES, *SHARED_VALUES))}, n, mark, created_at, updated_at)
SELECT {", ".join(map(column, range(len(OWN_VALUES))))}, {", ".join(f"?{i + 3}" for i in range(len(SHARED_VALUES)))},
       1, ?2, ?1, ?1
FROM {BOUND_ROWS} WHERE {column(0)} IS NOT NULL
"""  # noqa: S608

#: At, ns, v, actor, then bound rows: [schedule, change, data]. The first events of new schedules.
INSERT_CREATED_EVENTS = f"""
INSERT INTO event (at, ns, schedule_id, n, type, v, actor, change, data)
SELECT ?1, ?2, {column(0)}, 1, 'ScheduleCreated', ?3, ?4, {column(1)}, {column(2)}
FROM {BOUND_ROWS} WHERE {column(0)} IS NOT NULL
"""  # noqa: S608

#: Max, closed_until, then bound rows: [name]. Of a known gate only max is changed.
UPSERT_BOUND_GATES = f"""
INSERT INTO gate_limit (name, max, closed_until)
SELECT {column(0)}, ?1, ?2 FROM {BOUND_ROWS} WHERE {column(0)} IS NOT NULL
ON CONFLICT (name) DO UPDATE SET max = excluded.max
"""  # noqa: S608

#: Rows: [`schedule_values`…]. Returns [mark, n] of the schedules whose row has the mark.
MARKED_SCHEDULES = f"""
{WITH_ROWS}
SELECT json_group_array(json_array(s.mark, s.n)) FROM j CROSS JOIN schedule s
WHERE s.id = {_I["id"]} AND s.mark = {_MARK}
"""  # noqa: S608

#: Rows: [index, id, ns, name, change, ids of new runs]. Returns [index, whether the change was accepted before,
#: schedule]. The schedule has the id, or has the name and is not deleted.
REFUSED_SCHEDULES = f"""
{WITH_ROWS}
SELECT json_group_array(json_array({item(0)},
       EXISTS (SELECT 1 FROM event e WHERE e.schedule_id = s.id AND e.rid IS NULL AND e.schedule_id IS NOT NULL
                 AND e.n IS NOT NULL AND e.change = {item(4)})
       OR {_inserted_by(4, 5)}, {SCHEDULE_JSON}))
FROM j CROSS JOIN schedule s
WHERE s.sid = ifnull((SELECT o.sid FROM schedule o WHERE o.id = {item(1)}),
    (SELECT o.sid FROM schedule o WHERE o.ns = {item(2)} AND o.name = {item(3)} AND o.state <> 'deleted'))
"""  # noqa: S608

# ── other rows than the guarded ones ────────────────────────────────────────

#: Rows: [id, data]. A payload that exists stays.
INSERT_BODIES = f"{WITH_ROWS} INSERT OR IGNORE INTO body (id, data) SELECT {item(0)}, {item(1)} FROM j"  # noqa: S608

#: Rows: [name, max, held, closed_until]. Stores `held` of gates that do not exist yet. Run it before `UPSERT_GATES`.
HOLD_NEW_GATES = f"""
{WITH_ROWS}
INSERT OR REPLACE INTO gate_held (name, held) SELECT {item(0)}, {item(2)} FROM j
WHERE {item(2)} > 0 AND NOT EXISTS (SELECT 1 FROM gate_limit l WHERE l.name = {item(0)})
"""  # noqa: S608
#: Rows: [name, max, held, closed_until]. Of a known gate only max is changed.
UPSERT_GATES = f"""
{WITH_ROWS}
INSERT INTO gate_limit (name, max, closed_until)
SELECT {item(0)}, {item(1)}, {item(3)} FROM j WHERE true
ON CONFLICT (name) DO UPDATE SET max = excluded.max
"""  # noqa: S608

#: Rows: [schedule, instant]. Removes the spans of these schedules that end then or later.
CUT_SPANS = f"""
{WITH_ROWS}
DELETE FROM span WHERE rowid IN (
    SELECT s.rowid FROM j CROSS JOIN span s WHERE s.schedule_id = {item(0)} AND s.through >= {item(1)}
)"""  # noqa: S608

#: Rows: the fields of a `Span`.
INSERT_SPANS = f"""
{WITH_ROWS}
INSERT INTO span (schedule_id, revision, "after", through, count, reason, ns)
SELECT {", ".join(map(item, range(7)))} FROM j
"""  # noqa: S608

#: Rows: [schedule, number of touches].
TOUCH_SCHEDULES = f"""
{WITH_ROWS}
UPDATE schedule AS s SET touched = s.touched + {item(1)} FROM j WHERE s.id = {item(0)}
"""  # noqa: S608

#: Returns 1 if a run is parked, else 0.
ANY_PARKED = "SELECT EXISTS (SELECT 1 FROM run INDEXED BY run_parked WHERE parked_on IS NOT NULL)"
#: Gate names. Releases one slot of each gate of which only one is held: the gate's row is deleted.
RELEASE_LAST_HOLDS = "DELETE FROM gate_held WHERE held <= 1 AND name IN (SELECT value FROM json_each(?1))"
#: Gate names. Releases one slot of each gate that has a row.
RELEASE_SINGLE_HOLDS = "UPDATE gate_held SET held = held - 1 WHERE name IN (SELECT value FROM json_each(?1))"
#: Rows: [gate, number of slots to release]. To be followed by `DELETE_FREE_GATES` with the same rows.
RELEASE_COUNTED_HOLDS = f"""
{WITH_ROWS}
UPDATE gate_held AS g SET held = g.held - {item(1)} FROM j WHERE g.name = {item(0)}
"""  # noqa: S608
#: Rows: [gate, …]. Deletes the rows of gates that have no holder left; the gates themselves stay.
DELETE_FREE_GATES = f"{WITH_ROWS} DELETE FROM gate_held WHERE held <= 0 AND name IN (SELECT {item(0)} FROM j)"  # noqa: S608
