"""SQL statements of `apply`, each after a comment on its parameters; rows are sent as one array per column."""

from __future__ import annotations

from mainspring.backends.postgres.rows import (
    NOW_SQL,
    OPEN_STATES,
    SCHEDULE_VALUES,
    STILL_RUNNING,
    run_columns,
    schedule_columns,
    text_columns,
    unnest_columns,
)

#: Parameters: now. Returns the transaction's instant, and makes the server assign the transaction's id. The id must
#: exist before the first event takes its number in the log, `seq`: a log cursor decides by the ids of transactions
#: whether a missing number may still appear.
BEGIN = f"SELECT {NOW_SQL} AS now, pg_current_xact_id()::text AS xid"

# ── runs that exist ─────────────────────────────────────────────────────────

#: `idx` is the index of the change in the batch, `moves` the number of events of this run that the change appends.
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
#: Parameters: now, MOVE_COLUMNS in the order of ids. A row with `epoch` updates its run if the run is running under the
#: lease with this epoch. A row with `at_n` updates its run if the last event of the run has this number; it also sets
#: `cancel` and `body`. An ended run is not opened again while an open run holds its unique key. Returns `idx` and the
#: number of the last event of each updated run.
MOVE_RUNS = f"""
UPDATE §run r SET
    n = r.n + i.moves, state = i.state, ready_at = i.ready_at, failures = i.failures, crashes = i.crashes,
    reason = i.reason, result = i.result, error = i.error, began_at = i.began_at, ms = i.ms, dead = i.dead,
    cancel = CASE WHEN i.at_n IS NULL THEN r.cancel ELSE i.cancel END,
    body = CASE WHEN i.at_n IS NULL THEN r.body ELSE i.body END,
    ended_at = CASE WHEN i.state NOT IN {OPEN_STATES} THEN coalesce(r.ended_at, $1::bigint) END,
    owner = CASE WHEN i.state = 'running' THEN r.owner END,
    lease_until = CASE WHEN i.state = 'running' THEN r.lease_until END,
    parked_on = CASE WHEN i.state = 'running' THEN r.parked_on END,
    progress = CASE WHEN i.state = 'running' THEN r.progress END,
    held_until = 0
FROM {unnest_columns(MOVE_COLUMNS, 2)}
WHERE r.id = i.id AND (
    (i.epoch IS NOT NULL AND {STILL_RUNNING} AND r.epoch = i.epoch)
    OR (i.at_n IS NOT NULL AND r.n = i.at_n AND (
        i.unique_key IS NULL OR i.state NOT IN {OPEN_STATES} OR r.ended_at IS NULL OR (
            SELECT o.id FROM §run o WHERE o.ns = i.ns AND o.unique_key = i.unique_key
              AND o.unique_key IS NOT NULL AND o.ended_at IS NULL LIMIT 1) IS NULL)))
RETURNING i.idx, r.n
"""  # noqa: S608 - column names, no input

#: Columns of plain successes that are sent as one text each. Two array parameters follow them: the results of the runs,
#: and the data of their events. Both have NULL for a run without a result; the server then composes the event's data.
_TEXT_COLUMNS = {"id": "text", "epoch": "integer", "began_at": "bigint", "ms": "bigint", "change": "text"}
TEXT_COLUMN_COUNT = len(_TEXT_COLUMNS)
SUCCESS_COLUMN_COUNT = TEXT_COLUMN_COUNT + 2


def complete_runs_ctes(first: int) -> str:
    """Return SQL of CTEs that complete runs of one owner and append their events.

    Parameters from number `first` on: owner, then the SUCCESS_COLUMN_COUNT columns of plain successes. The statement
    must begin with a CTE `t` that has the instant. The CTE `s` returns the runs that were completed: those whose lease
    held.
    """
    results = first + TEXT_COLUMN_COUNT + 1
    return f"""
s AS (
    UPDATE §run r SET n = r.n + 1, state = 'succeeded', reason = NULL, error = NULL, result = i.result,
        began_at = i.began_at, ms = i.ms, dead = false, ended_at = t.now, owner = NULL, lease_until = NULL,
        parked_on = NULL, progress = NULL
    FROM t, unnest({text_columns(_TEXT_COLUMNS, first + 1)}, ${results}::text[], ${results + 1}::text[])
        AS i({", ".join(_TEXT_COLUMNS)}, result, data)
    WHERE r.id = i.id AND {STILL_RUNNING} AND r.epoch = i.epoch
    RETURNING r.id, r.n, r.ns, r.schedule_id, r.epoch, r.attempt, r.began_at, r.ms, i.change, i.data),
se AS (
    INSERT INTO §event (at, ns, schedule_id, run_id, n, type, v, change, epoch, attempt, owner, data)
    SELECT t.now, s.ns, s.schedule_id, s.id, s.n, 'RunSucceeded', 1, s.change, s.epoch, s.attempt, ${first}::text,
           coalesce(s.data, '{{"began_at":' || s.began_at || ',"ms":' || s.ms || '}}')
    FROM t, s ORDER BY s.id)"""  # noqa: S608


#: Parameters: now, owner, success columns. Returns the instant, and the ids of the runs whose lease held, NULL if there
#: are none.
COMPLETE_RUNS = f"""
WITH t AS MATERIALIZED (SELECT {NOW_SQL} AS now),{complete_runs_ctes(2)}
SELECT t.now, (SELECT array_agg(s.id) FROM s) AS ids FROM t
"""  # noqa: S608

_RELEASED_SLOTS_PARAMETER = 3 + SUCCESS_COLUMN_COUNT
#: Completes runs as COMPLETE_RUNS does, with its parameters and result, and gives the runs' slots back to their gates.
#: Two more parameters, an array of run ids and an array of gate names, have a pair for each slot. Slots of runs whose
#: lease did not hold are not given back. Gates are locked in the order of names.
COMPLETE_RUNS_AND_LEAVE_GATES = f"""
WITH t AS MATERIALIZED (SELECT {NOW_SQL} AS now),{complete_runs_ctes(2)},
f AS MATERIALIZED (
    SELECT x.gate, count(*)::integer AS times
    FROM unnest(${_RELEASED_SLOTS_PARAMETER}::text[], ${_RELEASED_SLOTS_PARAMETER + 1}::text[]) AS x(id, gate)
    WHERE (x.id IN (SELECT s.id FROM s)) IS TRUE GROUP BY x.gate),
m AS MATERIALIZED (
    SELECT g.name FROM §gate g WHERE g.name = ANY (ARRAY(SELECT f.gate FROM f)) ORDER BY g.name FOR UPDATE),
g AS (
    UPDATE §gate g SET held = greatest(0, g.held - f.times) FROM f, m WHERE g.name = m.name AND m.name = f.gate)
SELECT t.now, (SELECT array_agg(s.id) FROM s) AS ids FROM t
"""  # noqa: S608

# ── new runs ────────────────────────────────────────────────────────────────

BODY_COLUMNS = {"id": "text", "data": "text"}


def insert_bodies_ctes(first: int, where: str) -> str:
    """Return SQL of CTEs that insert payloads that do not exist yet.

    The BODY_COLUMNS are the parameters from number `first` on. `where`: a WHERE clause on the payloads `i`, or ''.

    Payloads that exist are locked first. Retention locks a payload, too, before it searches for runs that use it, and
    skips a payload that others have locked. So it never removes a payload between this statement and the commit. If
    retention was first, this statement waits for its commit, and inserts the payload again if it is gone.
    """
    return f"""k AS MATERIALIZED (
    SELECT b.id FROM §body b WHERE b.id = ANY (${first}::text[]) ORDER BY b.id FOR KEY SHARE),
b AS (
    INSERT INTO §body (id, data) SELECT i.id, i.data FROM {unnest_columns(BODY_COLUMNS, first)}
    {where} {"AND" if where else "WHERE"} (SELECT count(*) FROM k) >= 0 ORDER BY i.ord
    ON CONFLICT DO NOTHING)"""  # noqa: S608 - column names, no input


#: The parameters of REFUSED_RUNS.
REFUSED_RUN_COLUMNS = {
    "idx": "integer",
    "id": "text",
    "ns": "text",
    "unique_key": "text",
    "change": "text",
    "schedule_id": "text",
    "fire_key": "text",
}
#: Returns, for each refused change that a run refused, this run, `idx`, and `repeated`: whether the change itself wrote
#: an event of the run. It is the run with the id, else the open run that holds the unique key, else the run of the
#: fire.
REFUSED_RUNS = f"""
SELECT {run_columns("r")}, i.idx,
       EXISTS (SELECT 1 FROM §event e
               WHERE e.run_id = r.id AND e.run_id IS NOT NULL AND e.change = i.change) AS repeated
FROM {unnest_columns(REFUSED_RUN_COLUMNS)}
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
#: The parameters of INSERTED_BY_CHANGE. `id` is the id of a run that the change inserts.
INSERTED_BY_CHANGE_COLUMNS = {"idx": "integer", "id": "text", "change": "text"}
#: Returns `idx` of each change that wrote an event of its run: such a change is stored already.
INSERTED_BY_CHANGE = f"""
SELECT DISTINCT i.idx FROM {unnest_columns(INSERTED_BY_CHANGE_COLUMNS)}
JOIN §event e ON e.run_id = i.id AND e.run_id IS NOT NULL
WHERE e.change = i.change
"""  # noqa: S608
#: Parameters: change ids, earliest instant. Returns the ids of the changes that wrote a note, an event that changes no
#: row, at this instant or later.
NOTED_BY_CHANGE = """
SELECT DISTINCT e.change FROM §event e WHERE e.n IS NULL AND e.at >= $2::bigint AND e.change = ANY($1::text[])
"""

# ── schedules ───────────────────────────────────────────────────────────────

#: `idx` is the index of the change in the batch, `moves` the number of events of this schedule that the change appends.
#: The columns `at_…` have the values that the caller of `apply` read before.
SCHEDULE_AT_COLUMNS = {
    "idx": "integer",
    "id": "text",
    "moves": "integer",
    **SCHEDULE_VALUES,
    "at_revision": "integer",
    "at_cursor": "bigint",
    "at_n": "integer",
    "at_touched": "integer",
    "renamed": "boolean",
}
#: Parameters: now, SCHEDULE_AT_COLUMNS in the order of ids. Updates each schedule whose revision, cursor and number of
#: the last event are as the caller read them. Its count of touches becomes 0 only if it is as the caller read it, too.
#: A schedule is not renamed while another one that is not deleted has the new name. Returns `idx` and the number of the
#: last event of each updated schedule.
MOVE_SCHEDULES = f"""
UPDATE §schedule s SET
    n = s.n + i.moves, {", ".join(f"{name} = i.{name}" for name in SCHEDULE_VALUES)}, held_until = 0,
    updated_at = CASE WHEN i.moves > 0 THEN $1::bigint ELSE s.updated_at END,
    touched = CASE WHEN s.touched = i.at_touched THEN 0 ELSE s.touched END
FROM {unnest_columns(SCHEDULE_AT_COLUMNS, 2)}
WHERE s.id = i.id AND s.revision = i.at_revision AND s.cursor = i.at_cursor AND s.n = i.at_n
  AND (NOT i.renamed OR (
    SELECT o.id FROM §schedule o WHERE o.ns = i.ns AND o.name = i.name AND o.state <> 'deleted' LIMIT 1) IS NULL)
RETURNING i.idx, s.n
"""  # noqa: S608

NEW_SCHEDULE_COLUMNS = {"id": "text", "n": "integer", **SCHEDULE_VALUES}
_NEW_SCHEDULE_COLUMN_LIST = ", ".join(NEW_SCHEDULE_COLUMNS)
#: Parameters: now, NEW_SCHEDULE_COLUMNS. Inserts schedules, but skips a schedule whose id or name exists. Returns the
#: ids of the inserted schedules.
INSERT_SCHEDULES = f"""
INSERT INTO §schedule ({_NEW_SCHEDULE_COLUMN_LIST}, created_at, updated_at)
SELECT {_NEW_SCHEDULE_COLUMN_LIST}, $1::bigint, $1::bigint FROM {unnest_columns(NEW_SCHEDULE_COLUMNS, 2)} ORDER BY i.ord
ON CONFLICT DO NOTHING RETURNING id
"""  # noqa: S608

#: The parameters of REFUSED_SCHEDULES.
REFUSED_SCHEDULE_COLUMNS = {"idx": "integer", "id": "text", "ns": "text", "name": "text", "change": "text"}
#: Returns, for each refused change that a schedule refused, this schedule, `idx`, and `repeated`: whether the change
#: itself wrote an event of the schedule. It is the schedule with the id, else the schedule with the name that is not
#: deleted.
REFUSED_SCHEDULES = f"""
SELECT {schedule_columns("s")}, i.idx, EXISTS (
    SELECT 1 FROM §event e WHERE e.schedule_id = s.id AND e.run_id IS NULL AND e.schedule_id IS NOT NULL
      AND e.n IS NOT NULL AND e.change = i.change) AS repeated
FROM {unnest_columns(REFUSED_SCHEDULE_COLUMNS)}
CROSS JOIN LATERAL (
    SELECT o.* FROM (
        SELECT 1 AS rank, a.* FROM §schedule a WHERE a.id = i.id
        UNION ALL
        SELECT 2, a.* FROM §schedule a WHERE a.ns = i.ns AND a.name = i.name AND a.state <> 'deleted') o
    ORDER BY o.rank LIMIT 1) s
"""  # noqa: S608

# ── rows without a guard ────────────────────────────────────────────────────

#: Parameters: BODY_COLUMNS. A payload that exists is skipped.
INSERT_BODIES = f"WITH {insert_bodies_ctes(1, '')} SELECT count(*) FROM k"  # noqa: S608

GATE_COLUMNS = {"name": "text", "max": "integer", "held": "integer", "closed_until": "bigint"}
#: Parameters: GATE_COLUMNS, each gate once, in the order of names. Inserts gates. If a gate exists, only its maximum
#: changes.
UPSERT_GATES = f"""
INSERT INTO §gate AS g (name, max, held, closed_until)
SELECT i.name, i.max, i.held, i.closed_until FROM {unnest_columns(GATE_COLUMNS)} ORDER BY i.ord
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
CUT_COLUMNS = {"schedule_id": "text", "at": "bigint"}
#: Parameters: CUT_COLUMNS. Removes the spans of these schedules that end at this instant or later.
CUT_SPANS = f"""
DELETE FROM §span s USING {unnest_columns(CUT_COLUMNS)}
WHERE s.schedule_id = i.schedule_id AND s.through >= i.at
"""  # noqa: S608

#: Parameters: SPAN_COLUMNS. Inserts spans.
INSERT_SPANS = f"""
INSERT INTO §span ({", ".join(SPAN_COLUMNS)}) SELECT {", ".join(f"i.{c}" for c in SPAN_COLUMNS)}
FROM {unnest_columns(SPAN_COLUMNS)} ORDER BY i.ord
"""  # noqa: S608

COUNT_COLUMNS = {"id": "text", "times": "integer"}
#: Parameters: COUNT_COLUMNS, schedules in the order of ids. Adds `times` to the count of touches of each schedule.
TOUCH_SCHEDULES = f"""
UPDATE §schedule s SET touched = s.touched + i.times FROM {unnest_columns(COUNT_COLUMNS)} WHERE s.id = i.id
"""  # noqa: S608
#: Parameters: gate names, then COUNT_COLUMNS with gate names as ids. Gives `times` slots back to each gate. Gates are
#: locked in the order of names. All statements keep this order, so they cannot deadlock.
RELEASE_GATES = f"""
WITH m AS MATERIALIZED (SELECT g.name FROM §gate g WHERE g.name = ANY($1::text[]) ORDER BY g.name FOR UPDATE)
UPDATE §gate g SET held = greatest(0, g.held - i.times) FROM {unnest_columns(COUNT_COLUMNS)}, m
WHERE g.name = i.id AND m.name = i.id
"""  # noqa: S608
