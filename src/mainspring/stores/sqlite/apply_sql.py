"""The statements of `apply`; each takes its rows as one JSON array of arrays."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.model.schedule import Schedule
from mainspring.stores.sqlite.rows import BOUND, GIVEN, RUN_JSON, SCHEDULE_JSON, bound, item

_OPEN = "('blocked', 'waiting', 'running', 'retrying')"
_STILL_RUNNING = f"{item(4)} = 'running'"

_VALUES = f"""mark = {item(2)}, n = r.n + {item(3)}, state = {item(4)}, ready_at = {item(5)},
    failures = {item(6)}, crashes = {item(7)}, reason = {item(8)}, result = {item(9)}, error = {item(10)},
    began_at = {item(11)}, ms = {item(12)}, dead = {item(13)}"""
_HELD = f"r.id = {item(0)} AND r.state = 'running' AND r.epoch = {item(1)}"

#: [id, epoch, mark, moves, values…, ended at]: a run that is running under this epoch ends or waits again.
LEAVE = f"""
{GIVEN}
UPDATE run AS r SET {_VALUES}, ended_at = {item(14)},
    owner = NULL, lease_until = NULL, parked_on = NULL, progress = NULL
FROM j WHERE {_HELD}
"""  # noqa: S608 - positions, no input

#: [id, epoch, mark, moves, values…]: it stays where it is.
STAY = f"{GIVEN} UPDATE run AS r SET {_VALUES}, ended_at = NULL FROM j WHERE {_HELD}"  # noqa: S608


def _succeed(began_at: str, ms: str, result: str, mark: str, wall: str) -> str:
    return f"""
UPDATE run AS r SET mark = {mark}, n = r.n + 1, state = 'succeeded', reason = NULL, error = NULL, result = {result},
    began_at = {began_at}, ms = {ms}, ended_at = {wall},
    owner = NULL, lease_until = NULL, parked_on = NULL, progress = NULL"""  # noqa: S608


#: mark, ended at, then [rid, epoch, began at, ms, result], bound: the plain success of runs claimed here.
SUCCEED = f"""
{_succeed(bound(2), bound(3), bound(4), "?1", "?2")}
FROM {BOUND} WHERE r.rid = {bound(0)} AND r.state = 'running' AND r.epoch = {bound(1)}
"""
#: [rid], mark, ended at, epoch, began at, ms, result: the same of runs of which all this is alike. Without a FROM a row
#: is written as it is found; with one, all of them are put aside first.
SUCCEED_ALIKE = f"""
{_succeed("?5", "?6", "?7", "?2", "?3")}
WHERE r.rid IN (SELECT value FROM json_each(?1)) AND r.state = 'running' AND r.epoch = ?4
"""  # noqa: S608
#: [rid]: those that the mark says were written.
SUCCEEDED = "SELECT json_group_array(r.rid) FROM json_each(?1) j CROSS JOIN run r WHERE r.rid = j.value AND r.mark = ?2"
#: rid → change, at, owner: what their rows do not say is said here.
SUCCESSES = """
INSERT INTO event (at, ns, schedule_id, rid, n, type, v, change, epoch, attempt, owner, data)
SELECT ?2, r.ns, r.schedule_id, r.rid, r.n, 'RunSucceeded', 1, j.value, r.epoch, r.attempt, ?3,
       iif(r.result IS NULL, '{"began_at":' || r.began_at || ',"ms":' || r.ms || '}',
           json_object('began_at', r.began_at, 'ms', r.ms, 'result', r.result))
FROM json_each(?1) j CROSS JOIN run r WHERE r.rid = CAST(j.key AS INTEGER)
"""

#: [id, n, mark, moves, values…, cancel, ns, unique key]: the stream is at n; re-opening takes no key that is in use.
UPDATE_AT = f"""
{GIVEN}
UPDATE run AS r SET {_VALUES}, cancel = {item(14)},
    ended_at = CASE WHEN {item(4)} NOT IN {_OPEN} THEN ifnull(r.ended_at, ?2) END,
    owner = CASE WHEN {_STILL_RUNNING} THEN r.owner END,
    lease_until = CASE WHEN {_STILL_RUNNING} THEN r.lease_until END,
    parked_on = CASE WHEN {_STILL_RUNNING} THEN r.parked_on END,
    progress = CASE WHEN {_STILL_RUNNING} THEN r.progress END
FROM j
WHERE r.id = {item(0)} AND r.n = {item(1)} AND (
    {item(16)} IS NULL OR {item(4)} NOT IN {_OPEN} OR r.ended_at IS NULL OR NOT EXISTS (
        SELECT 1 FROM run o WHERE o.ns = {item(15)} AND o.unique_key = {item(16)}
          AND o.unique_key IS NOT NULL AND o.ended_at IS NULL))
"""  # noqa: S608

#: [id, mark, body]: payloads seldom change, and writing an unchanged one would rewrite its index entry.
UPDATE_BODIES = f"""
{GIVEN}
UPDATE run AS r SET body = {item(2)} FROM j
WHERE r.id = {item(0)} AND r.mark = {item(1)} AND r.body IS NOT {item(2)}
"""  # noqa: S608

#: [id, mark]: which of these rows were written under their mark, and their number.
MARKED_RUNS = f"""
{GIVEN}
SELECT json_group_array(json_array(r.mark, r.n)) FROM j CROSS JOIN run r
WHERE r.id = {item(0)} AND r.mark = {item(1)}
"""  # noqa: S608


def _inserted_by(change: int, runs: int) -> str:
    """SQL: a run that the change would insert says that this very change did so before."""
    return f"""EXISTS (SELECT 1 FROM json_each({item(runs)}) i CROSS JOIN run o CROSS JOIN event e
                       WHERE o.id = i.value AND e.rid = o.rid AND e.rid IS NOT NULL AND e.change = {item(change)})"""  # noqa: S608


#: [index, id, ns, unique key, change, schedule, fire key, inserted runs] → [index, repeated, run].
REFUSED_RUNS = f"""
{GIVEN}
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

#: at, then [ns, schedule, rid, id, v, actor, change, data], bound: the first events of runs inserted just now.
BIRTHS = f"""
INSERT INTO event (at, ns, schedule_id, rid, run_ref, n, type, v, actor, change, data)
SELECT ?1, {bound(0)}, {bound(1)}, {bound(2)}, {bound(3)}, 1, 'RunScheduled', {", ".join(map(bound, range(4, 8)))}
FROM {BOUND} WHERE {bound(2)} IS NOT NULL
"""  # noqa: S608

#: The same for a single one.
BIRTH = """
INSERT INTO event (at, ns, schedule_id, rid, run_ref, n, type, v, actor, change, data)
VALUES (?1, ?2, ?3, ?4, ?5, 1, 'RunScheduled', ?6, ?7, ?8, ?9)
"""

#: Runs inserted just now, which turned out to be none. A row that was ignored has used up a number, too, so the numbers
#: alone do not tell.
UNBORN = "DELETE FROM run WHERE rid > ?1 AND rid <= ?2 AND mark = ?3"

# ── schedules ───────────────────────────────────────────────────────────────

#: What planning does not change.
_DEFINITION = ("ns", "name", "owner", "origin", "app", "version", "digest", "spec", "body")
#: What it does.
_POSITION = ("state", "revision", "anchor", "cursor", "next_at", "fired", "reason", "until")
_COLUMNS = ("id", "mark", "moves", *_DEFINITION, *_POSITION)
_I = {name: item(i) for i, name in enumerate(_COLUMNS)}
_END = len(_COLUMNS)
_MARK = _I["mark"]
_encoder = msgspec.json.Encoder()


def schedule_values(schedule: Schedule, mark: int, moves: int) -> list[Any]:
    """The first values of a schedule's row; its guard's follow."""
    s = schedule
    spec = _encoder.encode(s.spec).decode()
    definition = (s.ns, s.name, s.owner, s.origin, s.app, s.version, s.digest, spec, s.spec.body)
    position = (s.state, s.revision, s.anchor, s.cursor, s.next_at, s.fired, s.reason, s.until)
    return [s.id, mark, moves, *definition, *position]


#: …revision, cursor, n, touched: the schedule is where the caller saw it.
UPDATE_SCHEDULES = f"""
{GIVEN}
UPDATE schedule AS s SET
    mark = {_MARK}, n = s.n + {_I["moves"]}, {", ".join(f"{name} = {_I[name]}" for name in _POSITION)},
    updated_at = CASE WHEN {_I["moves"]} > 0 THEN ?2 ELSE s.updated_at END,
    touched = CASE WHEN s.touched = {item(_END + 3)} THEN 0 ELSE s.touched END
FROM j
WHERE s.id = {_I["id"]} AND s.revision = {item(_END)} AND s.cursor = {item(_END + 1)} AND s.n = {item(_END + 2)}
"""  # noqa: S608

#: The schedule of a bound row [sid, id, revision, cursor, n, …], where the caller saw it. Its number spares a search.
_SEEN = f"""s.sid = ifnull({bound(0)}, (SELECT o.sid FROM schedule o WHERE o.id = {bound(1)}))
  AND s.id = {bound(1)} AND s.revision = {bound(2)} AND s.cursor = {bound(3)} AND s.n = {bound(4)} AND s.touched = 0"""  # noqa: S608
#: mark, then […, new cursor, next at, fired, state, anchor, reason, until], bound: it comes further, and nothing else
#: of it changes: fewer indexes are written.
MOVE_SCHEDULES = f"""
UPDATE schedule AS s SET mark = ?1, cursor = {bound(5)}, next_at = {bound(6)}, fired = {bound(7)} FROM {BOUND}
WHERE {_SEEN} AND s.state = {bound(8)} AND s.anchor = {bound(9)} AND s.reason IS {bound(10)} AND s.until IS {bound(11)}
"""  # noqa: S608
#: mark, at, then […, new cursor, fired, anchor, reason, until], bound: it comes to its end.
FINISH_SCHEDULES = f"""
UPDATE schedule AS s SET mark = ?1, n = s.n + 1, updated_at = ?2, state = 'finished', next_at = NULL,
    cursor = {bound(5)}, fired = {bound(6)}, reason = {bound(8)} FROM {BOUND}
WHERE {_SEEN} AND s.anchor = {bound(7)} AND s.until IS {bound(9)}
"""  # noqa: S608
#: at, then [ns, schedule, rid, id, n, type, v, actor, change, data], bound: events of plans of all kinds, in order.
PLANNED = f"""
INSERT INTO event (at, ns, schedule_id, rid, run_ref, n, type, v, actor, change, data)
SELECT ?1, {", ".join(map(bound, range(10)))} FROM {BOUND} WHERE {bound(1)} IS NOT NULL
"""  # noqa: S608
#: [id]: those that the mark says were written.
MOVED_BY = (
    "SELECT json_group_array(s.id) FROM json_each(?1) j CROSS JOIN schedule s WHERE s.id = j.value AND s.mark = ?2"
)

REDEFINE_SCHEDULES = f"""
{GIVEN}
UPDATE schedule AS s SET {", ".join(f"{name} = {_I[name]}" for name in _DEFINITION)} FROM j
WHERE s.id = {_I["id"]} AND s.mark = {_MARK} AND ({" OR ".join(f"s.{name} IS NOT {_I[name]}" for name in _DEFINITION)})
"""  # noqa: S608

#: …id, ns, name: no schedule of this id, and none alive of this name.
INSERT_SCHEDULES = f"""
{GIVEN}
INSERT OR IGNORE INTO schedule (id, mark, n, {", ".join((*_DEFINITION, *_POSITION))}, created_at, updated_at)
SELECT {", ".join(_I[name] for name in _COLUMNS)}, ?2, ?2 FROM j
WHERE NOT EXISTS (SELECT 1 FROM schedule o WHERE o.id = {item(_END)})
  AND NOT EXISTS (SELECT 1 FROM schedule o
                  WHERE o.ns = {item(_END + 1)} AND o.name = {item(_END + 2)} AND o.state <> 'deleted')
"""  # noqa: S608

#: What differs from one new schedule to the next, and what mostly does not.
OWN_VALUES = ("id", "name", "digest", "spec", "body", "next_at")
SHARED_VALUES = tuple(name for name in (*_DEFINITION, *_POSITION) if name not in OWN_VALUES)
#: at, mark, the shared values, then a schedule's own, bound: one that exists, by id or by name, is passed over.
INSERT_BOUND_SCHEDULES = f"""
INSERT OR IGNORE INTO schedule ({", ".join((*OWN_VALUES, *SHARED_VALUES))}, n, mark, created_at, updated_at)
SELECT {", ".join(map(bound, range(len(OWN_VALUES))))}, {", ".join(f"?{i + 3}" for i in range(len(SHARED_VALUES)))},
       1, ?2, ?1, ?1
FROM {BOUND} WHERE {bound(0)} IS NOT NULL
"""  # noqa: S608

#: at, ns, v, actor, then [schedule, change, data], bound: the first events of schedules inserted just now.
CREATIONS = f"""
INSERT INTO event (at, ns, schedule_id, n, type, v, actor, change, data)
SELECT ?1, ?2, {bound(0)}, 1, 'ScheduleCreated', ?3, ?4, {bound(1)}, {bound(2)}
FROM {BOUND} WHERE {bound(0)} IS NOT NULL
"""  # noqa: S608

#: max, closed until, then [name], bound: a known gate only takes the new maximum.
UPSERT_BOUND_GATES = f"""
INSERT INTO gate_limit (name, max, closed_until)
SELECT {bound(0)}, ?1, ?2 FROM {BOUND} WHERE {bound(0)} IS NOT NULL
ON CONFLICT (name) DO UPDATE SET max = excluded.max
"""  # noqa: S608

MOVED_SCHEDULES = f"""
{GIVEN}
SELECT json_group_array(json_array(s.mark, s.n)) FROM j CROSS JOIN schedule s
WHERE s.id = {_I["id"]} AND s.mark = {_MARK}
"""  # noqa: S608

#: [index, id, ns, name, change, inserted runs] → [index, repeated, schedule].
REFUSED_SCHEDULES = f"""
{GIVEN}
SELECT json_group_array(json_array({item(0)},
       EXISTS (SELECT 1 FROM event e WHERE e.schedule_id = s.id AND e.rid IS NULL AND e.schedule_id IS NOT NULL
                 AND e.n IS NOT NULL AND e.change = {item(4)})
       OR {_inserted_by(4, 5)}, {SCHEDULE_JSON}))
FROM j CROSS JOIN schedule s
WHERE s.sid = ifnull((SELECT o.sid FROM schedule o WHERE o.id = {item(1)}),
    (SELECT o.sid FROM schedule o WHERE o.ns = {item(2)} AND o.name = {item(3)} AND o.state <> 'deleted'))
"""  # noqa: S608

# ── beside the guarded rows ─────────────────────────────────────────────────

#: [id, data]
INSERT_BODIES = f"{GIVEN} INSERT OR IGNORE INTO body (id, data) SELECT {item(0)}, {item(1)} FROM j"  # noqa: S608

#: [name, max, held, closed until]: new gates that are held from the beginning; to be said before the gates are there.
HOLD_NEW_GATES = f"""
{GIVEN}
INSERT OR REPLACE INTO gate_held (name, held) SELECT {item(0)}, {item(2)} FROM j
WHERE {item(2)} > 0 AND NOT EXISTS (SELECT 1 FROM gate_limit l WHERE l.name = {item(0)})
"""  # noqa: S608
#: The same rows: a known gate only takes the new maximum.
UPSERT_GATES = f"""
{GIVEN}
INSERT INTO gate_limit (name, max, closed_until)
SELECT {item(0)}, {item(1)}, {item(3)} FROM j WHERE true
ON CONFLICT (name) DO UPDATE SET max = excluded.max
"""  # noqa: S608

INSERT_SPANS = f"""
{GIVEN}
INSERT INTO span (schedule_id, revision, "after", through, count, reason, ns)
SELECT {", ".join(map(item, range(7)))} FROM j
"""  # noqa: S608

#: [schedule, times]
TOUCH_SCHEDULES = f"""
{GIVEN}
UPDATE schedule AS s SET touched = s.touched + {item(1)} FROM j WHERE s.id = {item(0)}
"""  # noqa: S608

ANY_PARKED = "SELECT EXISTS (SELECT 1 FROM run INDEXED BY run_parked WHERE parked_on IS NOT NULL)"
#: [gate]: each is left once, and nobody holds it any more.
FREE_GATES = "DELETE FROM gate_held WHERE held <= 1 AND name IN (SELECT value FROM json_each(?1))"
#: [gate], of those that were not: one less.
LEAVE_EACH = "UPDATE gate_held SET held = held - 1 WHERE name IN (SELECT value FROM json_each(?1))"
#: [gate, times], then the same rows: whoever held it more often holds it still.
LEAVE_GATES = f"""
{GIVEN}
UPDATE gate_held AS g SET held = g.held - {item(1)} FROM j WHERE g.name = {item(0)}
"""  # noqa: S608
FREE_LEFT_GATES = f"{GIVEN} DELETE FROM gate_held WHERE held <= 0 AND name IN (SELECT {item(0)} FROM j)"  # noqa: S608
