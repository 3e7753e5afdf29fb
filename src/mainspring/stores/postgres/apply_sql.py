"""The statements of `apply`; each takes its rows as one array a column."""

from __future__ import annotations

from mainspring.stores.postgres.rows import (
    NOW,
    OPEN,
    SCHEDULE_VALUES,
    STILL_RUNNING,
    given,
    run_columns,
    schedule_columns,
    told,
)

#: The first statement of a transaction: its time, and its number. The number must be there before an event's is taken:
#: whoever reads the log judges by it whether a number that is missing may still come.
BEGIN = f"SELECT {NOW} AS now, pg_current_xact_id()::text AS xid"

# ── runs that exist ─────────────────────────────────────────────────────────

MOVE_COLUMNS = {
    "idx": "integer",
    "id": "text",
    "epoch": "integer",
    "at_n": "integer",
    "moves": "integer",
    "state": "text",
    "ready_at": "bigint",
    "failures": "integer",
    "crashes": "integer",
    "reason": "text",
    "result": "text",
    "error": "text",
    "began_at": "bigint",
    "ms": "bigint",
    "dead": "boolean",
    "cancel": "text",
    "body": "text",
    "ns": "text",
    "unique_key": "text",
}
#: now, then `MOVE_COLUMNS`, in the order of ids. Under a lease (`epoch`) or at a number (`at_n`), which also sets
#: `cancel` and `body`; re-opening takes no unique key that is in use.
MOVE_RUNS = f"""
UPDATE §run r SET
    n = r.n + i.moves, state = i.state, ready_at = i.ready_at, failures = i.failures, crashes = i.crashes,
    reason = i.reason, result = i.result, error = i.error, began_at = i.began_at, ms = i.ms, dead = i.dead,
    cancel = CASE WHEN i.at_n IS NULL THEN r.cancel ELSE i.cancel END,
    body = CASE WHEN i.at_n IS NULL THEN r.body ELSE i.body END,
    ended_at = CASE WHEN i.state NOT IN {OPEN} THEN coalesce(r.ended_at, $1::bigint) END,
    owner = CASE WHEN i.state = 'running' THEN r.owner END,
    lease_until = CASE WHEN i.state = 'running' THEN r.lease_until END,
    parked_on = CASE WHEN i.state = 'running' THEN r.parked_on END,
    progress = CASE WHEN i.state = 'running' THEN r.progress END,
    held_until = 0
FROM {given(MOVE_COLUMNS, 2)}
WHERE r.id = i.id AND (
    (i.epoch IS NOT NULL AND {STILL_RUNNING} AND r.epoch = i.epoch)
    OR (i.at_n IS NOT NULL AND r.n = i.at_n AND (
        i.unique_key IS NULL OR i.state NOT IN {OPEN} OR r.ended_at IS NULL OR (
            SELECT o.id FROM §run o WHERE o.ns = i.ns AND o.unique_key = i.unique_key
              AND o.unique_key IS NOT NULL AND o.ended_at IS NULL LIMIT 1) IS NULL)))
RETURNING i.idx, r.n
"""  # noqa: S608 - column names, no input

#: Those that are `told`; then result and event data, arrays, only where there is a result to tell: the rest is put
#: together by the server.
_TOLD = {"id": "text", "epoch": "integer", "began_at": "bigint", "ms": "bigint", "change": "text"}
TOLD = len(_TOLD)
SUCCESS_COLUMNS = TOLD + 2


def successes(first: int) -> str:
    """CTEs: the plain successes of an owner, then the columns, as `s`, with their events; `t` has the time."""
    return f"""
s AS (
    UPDATE §run r SET n = r.n + 1, state = 'succeeded', reason = NULL, error = NULL, result = i.result,
        began_at = i.began_at, ms = i.ms, dead = false, ended_at = t.now, owner = NULL, lease_until = NULL,
        parked_on = NULL, progress = NULL
    FROM t, unnest({told(_TOLD, first + 1)}, ${first + TOLD + 1}::text[], ${first + TOLD + 2}::text[])
        AS i({", ".join(_TOLD)}, result, data)
    WHERE r.id = i.id AND {STILL_RUNNING} AND r.epoch = i.epoch
    RETURNING r.id, r.n, r.ns, r.schedule_id, r.epoch, r.attempt, r.began_at, r.ms, i.change, i.data),
se AS (
    INSERT INTO §event (at, ns, schedule_id, run_id, n, type, v, change, epoch, attempt, owner, data)
    SELECT t.now, s.ns, s.schedule_id, s.id, s.n, 'RunSucceeded', 1, s.change, s.epoch, s.attempt, ${first}::text,
           coalesce(s.data, '{{"began_at":' || s.began_at || ',"ms":' || s.ms || '}}')
    FROM t, s ORDER BY s.id)"""  # noqa: S608


#: now, owner, then the columns → the time, and which held.
SUCCEED = f"""
WITH t AS MATERIALIZED (SELECT {NOW} AS now),{successes(2)}
SELECT t.now, (SELECT array_agg(s.id) FROM s) AS ids FROM t
"""  # noqa: S608

_RELEASED_AT = 3 + SUCCESS_COLUMNS
#: The same, then for each gate that is left the run that leaves it and its name; of those that held, by names in order.
SUCCEED_AND_RELEASE = f"""
WITH t AS MATERIALIZED (SELECT {NOW} AS now),{successes(2)},
f AS MATERIALIZED (
    SELECT x.gate, count(*)::integer AS times
    FROM unnest(${_RELEASED_AT}::text[], ${_RELEASED_AT + 1}::text[]) AS x(id, gate)
    WHERE (x.id IN (SELECT s.id FROM s)) IS TRUE GROUP BY x.gate),
m AS MATERIALIZED (
    SELECT g.name FROM §gate g WHERE g.name = ANY (ARRAY(SELECT f.gate FROM f)) ORDER BY g.name FOR UPDATE),
g AS (
    UPDATE §gate g SET held = greatest(0, g.held - f.times) FROM f, m WHERE g.name = m.name AND m.name = f.gate)
SELECT t.now, (SELECT array_agg(s.id) FROM s) AS ids FROM t
"""  # noqa: S608

# ── new runs ────────────────────────────────────────────────────────────────

BODY_COLUMNS = {"id": "text", "data": "text"}


def bodies_given(first: int, where: str) -> str:
    """CTEs: payloads that are not there yet.

    One that is there is locked before it is relied on: retention takes the same lock before it asks who names a
    payload, so that it sees our run or waits for it, and never removes the payload in between.
    """
    return f"""k AS MATERIALIZED (
    SELECT b.id FROM §body b WHERE b.id = ANY (${first}::text[]) ORDER BY b.id FOR KEY SHARE),
b AS (
    INSERT INTO §body (id, data) SELECT i.id, i.data FROM {given(BODY_COLUMNS, first)}
    {where} {"AND" if where else "WHERE"} (SELECT count(*) FROM k) >= 0 ORDER BY i.ord
    ON CONFLICT DO NOTHING)"""  # noqa: S608 - column names, no input


#: [idx, id, ns, unique key, change, schedule, fire key] → idx, whether this very change wrote it, and the run.
REFUSED_COLUMNS = {
    "idx": "integer",
    "id": "text",
    "ns": "text",
    "unique_key": "text",
    "change": "text",
    "schedule_id": "text",
    "fire_key": "text",
}
REFUSED_RUNS = f"""
SELECT {run_columns("r")}, i.idx,
       EXISTS (SELECT 1 FROM §event e
               WHERE e.run_id = r.id AND e.run_id IS NOT NULL AND e.change = i.change) AS repeated
FROM {given(REFUSED_COLUMNS)}
CROSS JOIN LATERAL (
    SELECT o.* FROM (
        SELECT 1 AS rank, a.* FROM §run a WHERE a.id = i.id
        UNION ALL
        SELECT 2, a.* FROM §run a
        WHERE a.ns = i.ns AND a.unique_key = i.unique_key AND a.unique_key IS NOT NULL AND a.ended_at IS NULL
        UNION ALL
        SELECT 3, a.* FROM §run a
        WHERE a.schedule_id = i.schedule_id AND a.fire_key = i.fire_key AND a.schedule_id IS NOT NULL) o
    ORDER BY o.rank LIMIT 1) r
"""  # noqa: S608
#: [idx, run, change]: which changes wrote an event of one of the runs they insert.
WROTE_COLUMNS = {"idx": "integer", "id": "text", "change": "text"}
WROTE = f"""
SELECT DISTINCT i.idx FROM {given(WROTE_COLUMNS)} JOIN §event e ON e.run_id = i.id AND e.run_id IS NOT NULL
WHERE e.change = i.change
"""  # noqa: S608
#: change ids, not before: which of them wrote a note.
NOTED = """
SELECT DISTINCT e.change FROM §event e WHERE e.n IS NULL AND e.at >= $2::bigint AND e.change = ANY($1::text[])
"""

# ── schedules ───────────────────────────────────────────────────────────────

SCHEDULE_AT_COLUMNS = {
    "idx": "integer",
    "id": "text",
    "moves": "integer",
    **SCHEDULE_VALUES,
    "at_revision": "integer",
    "at_cursor": "bigint",
    "at_n": "integer",
    "at_touched": "integer",
}
#: now, then `SCHEDULE_AT_COLUMNS`, in the order of ids: the schedule is where the caller saw it.
MOVE_SCHEDULES = f"""
UPDATE §schedule s SET
    n = s.n + i.moves, {", ".join(f"{name} = i.{name}" for name in SCHEDULE_VALUES)}, held_until = 0,
    updated_at = CASE WHEN i.moves > 0 THEN $1::bigint ELSE s.updated_at END,
    touched = CASE WHEN s.touched = i.at_touched THEN 0 ELSE s.touched END
FROM {given(SCHEDULE_AT_COLUMNS, 2)}
WHERE s.id = i.id AND s.revision = i.at_revision AND s.cursor = i.at_cursor AND s.n = i.at_n
RETURNING i.idx, s.n
"""  # noqa: S608

NEW_SCHEDULE_COLUMNS = {"id": "text", "n": "integer", **SCHEDULE_VALUES}
_NAMES = ", ".join(NEW_SCHEDULE_COLUMNS)
#: now, then `NEW_SCHEDULE_COLUMNS`; one that exists, by id or by name, is passed over.
INSERT_SCHEDULES = f"""
INSERT INTO §schedule ({_NAMES}, created_at, updated_at)
SELECT {_NAMES}, $1::bigint, $1::bigint FROM {given(NEW_SCHEDULE_COLUMNS, 2)} ORDER BY i.ord
ON CONFLICT DO NOTHING RETURNING id
"""  # noqa: S608

REFUSED_SCHEDULE_COLUMNS = {"idx": "integer", "id": "text", "ns": "text", "name": "text", "change": "text"}
REFUSED_SCHEDULES = f"""
SELECT {schedule_columns("s")}, i.idx, EXISTS (
    SELECT 1 FROM §event e WHERE e.schedule_id = s.id AND e.run_id IS NULL AND e.schedule_id IS NOT NULL
      AND e.n IS NOT NULL AND e.change = i.change) AS repeated
FROM {given(REFUSED_SCHEDULE_COLUMNS)}
CROSS JOIN LATERAL (
    SELECT o.* FROM (
        SELECT 1 AS rank, a.* FROM §schedule a WHERE a.id = i.id
        UNION ALL
        SELECT 2, a.* FROM §schedule a WHERE a.ns = i.ns AND a.name = i.name AND a.state <> 'deleted') o
    ORDER BY o.rank LIMIT 1) s
"""  # noqa: S608

# ── beside the guarded rows ─────────────────────────────────────────────────

INSERT_BODIES = f"WITH {bodies_given(1, '')} SELECT count(*) FROM k"  # noqa: S608

GATE_COLUMNS = {"name": "text", "max": "integer", "held": "integer", "closed_until": "bigint"}
#: Each gate once, by name: a known gate only takes the new maximum, and is left alone when it has it.
UPSERT_GATES = f"""
INSERT INTO §gate AS g (name, max, held, closed_until)
SELECT i.name, i.max, i.held, i.closed_until FROM {given(GATE_COLUMNS)} ORDER BY i.ord
ON CONFLICT (name) DO UPDATE SET max = excluded.max WHERE g.max <> excluded.max
"""  # noqa: S608

SPAN_COLUMNS = {
    "schedule_id": "text",
    "revision": "integer",
    "after": "bigint",
    "through": "bigint",
    "count": "bigint",
    "reason": "text",
    "ns": "text",
}
INSERT_SPANS = f"""
INSERT INTO §span ({", ".join(SPAN_COLUMNS)}) SELECT {", ".join(f"i.{c}" for c in SPAN_COLUMNS)}
FROM {given(SPAN_COLUMNS)} ORDER BY i.ord
"""  # noqa: S608

COUNT_COLUMNS = {"id": "text", "times": "integer"}
#: In the order of ids.
TOUCH_SCHEDULES = f"""
UPDATE §schedule s SET touched = s.touched + i.times FROM {given(COUNT_COLUMNS)} WHERE s.id = i.id
"""  # noqa: S608
#: In the order of names: whoever takes several gates takes them so.
RELEASE_GATES = f"""
WITH m AS MATERIALIZED (SELECT g.name FROM §gate g WHERE g.name = ANY($1::text[]) ORDER BY g.name FOR UPDATE)
UPDATE §gate g SET held = greatest(0, g.held - i.times) FROM {given(COUNT_COLUMNS)}, m
WHERE g.name = i.id AND m.name = i.id
"""  # noqa: S608
