"""SQL statements of claims. In all of them the alias `c` stands for the *candidates*: runs that may be claimed.

*Claim order* is the order of priority, ready time and id.
"""

from __future__ import annotations

from mainspring.backends.postgres.apply_sql import complete_runs_ctes
from mainspring.backends.postgres.rows import (
    CLAIMABLE_STATES,
    NOW_SQL,
    RUN_COLUMNS,
    RUN_FIELDS,
    run_columns,
    unnest_columns,
)
from mainspring.backends.postgres.unpark import GATE_COUNT_COLUMNS

#: SQL: true for runs that wait to be claimed and are not parked at a gate.
_WAITS = f"c.state IN {CLAIMABLE_STATES} AND c.parked_on IS NULL"
#: The condition `_WAITS` for rows found by id. The `|| ''` keeps the server's query planner from using the partial
#: index of waiting runs, which it would read from end to end.
_STILL_WAITS = f"(c.state || '') IN {CLAIMABLE_STATES} AND c.parked_on IS NULL"
#: One index range per lane and priority, so the cost does not depend on the length of a queue. In all statements, $2 is
#: the lanes, and $3 the tasks.
_RANGES = "unnest($2::text[]) AS l(lane) CROSS JOIN (VALUES (0), (1), (2), (3)) AS p(p)"
#: In each index range, at most this many future runs are read to find a run whose task is offered.
_MAX_UNOFFERED_RUNS_PASSED = 100
_IN_RANGE = f"{_WAITS} AND c.lane = l.lane AND c.priority = p.p AND c.task = ANY($3::text[])"

#: The rule `can_claim_ahead` in SQL: a run may be claimed ahead of its time if it never crashed and has no gate but its
#: own schedule's.
_MAY_BE_EARLY = """c.crashes = 0 AND (c.gates IS NULL OR c.gates = '["schedule:' || c.schedule_id || '"]')"""


def _due_heads_sql(depth: str, now: str, lows: str = "", ahead: str = "") -> str:
    """Return SQL for id, priority and ready time of the first `depth` due runs, in claim order.

    The arguments are SQL expressions. `now`: the instant. `lows`: an array of the ready times from which to read, one
    for each priority; '': from the beginning. `ahead`: how many milliseconds before its time a run that may be claimed
    ahead counts as due; '': 0.
    """
    low = f"AND c.ready_at >= ({lows})[p.p + 1]" if lows else ""
    due = f"c.ready_at <= {now}"
    if ahead:
        due = f"c.ready_at <= {now} + {ahead} AND ({due} OR {_MAY_BE_EARLY})"
    return f"""
    SELECT x.id, x.priority, x.ready_at FROM {_RANGES} CROSS JOIN LATERAL (
        SELECT c.id, c.priority, c.ready_at FROM §run c WHERE {_IN_RANGE} AND {due} {low}
        ORDER BY c.ready_at, c.id LIMIT {depth}) x
    ORDER BY x.priority, x.ready_at, x.id LIMIT {depth}"""  # noqa: S608 - column names, no input


def _next_ready_sql(now: str) -> str:
    """Return SQL for the next instant after `now` at which an offered run becomes claimable, NULL if none is known.

    `now`: an SQL expression. An offered run has one of the lanes and tasks in the statement's parameters. Per lane and
    priority the search reads _MAX_UNOFFERED_RUNS_PASSED future runs at most. If there are that many, and none has an
    offered task, the time of the last of them counts: the caller then claims, and searches, again.
    """
    future = f"""FROM §run c WHERE {_WAITS} AND c.lane = l.lane AND c.priority = p.p AND c.ready_at > {now}
        ORDER BY c.ready_at, c.id"""
    return f"""
    SELECT min(coalesce(
        (SELECT y.ready_at FROM (SELECT c.ready_at, c.task {future} LIMIT {_MAX_UNOFFERED_RUNS_PASSED}) y
         WHERE y.task = ANY($3::text[]) LIMIT 1),
        (SELECT c.ready_at {future} OFFSET {_MAX_UNOFFERED_RUNS_PASSED - 1} LIMIT 1)))
    FROM {_RANGES}"""  # noqa: S608


def _next_ready_ahead_sql(now: str, ahead: str) -> str:
    """Return SQL for the instant at which to claim again after a claim that went `ahead` milliseconds ahead.

    `now` and `ahead` are SQL expressions. The instant is the time of the first future run that the claim could not
    take: a run that may not be claimed ahead, or that falls due more than `ahead` milliseconds after `now`.
    """
    return f"""
    SELECT least(({_next_ready_sql(f"{now} + {ahead}")}), (SELECT min(x.ready_at) FROM {_RANGES} CROSS JOIN LATERAL (
        SELECT c.ready_at FROM §run c
        WHERE {_IN_RANGE} AND c.ready_at > {now} AND c.ready_at <= {now} + {ahead} AND ({_MAY_BE_EARLY}) IS NOT TRUE
        ORDER BY c.ready_at, c.id LIMIT 1) x))"""  # noqa: S608


def _first_ready_sql(now: str, but: str = "") -> str:
    """Return SQL for the first instant at which an offered run is or becomes claimable, NULL if none is known.

    `now`: an SQL expression. An offered run has one of the lanes and tasks in the statement's parameters. `but`: SQL
    for an array of ids of due runs that do not count; '': none.
    """
    others = f"AND NOT (c.id = ANY ({but}))" if but else ""
    return f"""
    SELECT least(({_next_ready_sql(now)}), (SELECT min(x.ready_at) FROM {_RANGES} CROSS JOIN LATERAL (
        SELECT c.ready_at FROM §run c WHERE {_IN_RANGE} AND c.ready_at <= {now} {others}
        ORDER BY c.ready_at, c.id LIMIT 1) x))"""  # noqa: S608


#: SQL: the instant, from the CTE `t`.
_T = "(SELECT now FROM t)"
#: SQL: a NULL for every column of a run.
NO_RUN = ", ".join(f"NULL::{RUN_COLUMNS[name]}" for name in RUN_FIELDS)
#: Appends the events of claimed runs in claim order, whatever the order of the server's plan for the update.
_APPEND_STARTED = """
    INSERT INTO §event (at, ns, schedule_id, run_id, n, type, v, epoch, attempt, owner)
    SELECT u.started_at, u.ns, u.schedule_id, u.id, u.n, 'RunStarted', 1, u.epoch, u.attempt, u.owner FROM u
    ORDER BY u.priority, u.ready_at, u.id"""
_SET_STARTED = """
    SET state = 'running', n = r.n + 1, epoch = r.epoch + 1, attempt = r.attempt + 1, held_until = 0,"""


#: CTEs on the gates of candidates: how many candidates need each gate (`w`), and the room of the gates that the
#: statement could lock (`m`). `full_` is true if a gate lacks room, is locked by another transaction, or has parked
#: runs. It is also true if a gate changed since this statement began: runs may be parked there that its snapshot does
#: not show.
_ENTERED = f"""
w AS MATERIALIZED (
    SELECT y.gate, count(*) AS times FROM c CROSS JOIN LATERAL json_array_elements_text(c.gates::json) AS y(gate)
    GROUP BY y.gate),
seen AS MATERIALIZED (
    SELECT g.name, g.ctid AS place FROM §gate g WHERE g.name = ANY (ARRAY(SELECT w.gate FROM w))),
m AS MATERIALIZED (
    SELECT g.name, g.ctid AS place, CASE WHEN g.closed_until > {_T} THEN 0 ELSE g.max - g.held END AS room
    FROM §gate g WHERE g.name = ANY (ARRAY(SELECT w.gate FROM w)) ORDER BY g.name FOR UPDATE SKIP LOCKED),
full_ AS MATERIALIZED (
    SELECT EXISTS (
        SELECT 1 FROM w JOIN seen ON seen.name = w.gate LEFT JOIN m ON m.name = w.gate
        WHERE m.name IS NULL OR m.place <> seen.place OR m.room < w.times)
     OR EXISTS (SELECT 1 FROM w JOIN §run p ON p.parked_on = w.gate WHERE p.parked_on IS NOT NULL) AS yes),"""  # noqa: S608
_ENTER = """
en AS (
    UPDATE §gate g SET held = g.held + w.times::integer FROM w, m
    WHERE g.name = m.name AND m.name = w.gate AND NOT (SELECT h.hard FROM h)),"""


#: SQL for id, priority and ready time of the due runs among those with the ids $8, in claim order, at most $7 + 1.
_NAMED_HEADS = f"""
    SELECT c.id, c.priority, c.ready_at FROM §run c
    WHERE c.id = ANY ($8::text[]) AND {_STILL_WAITS} AND c.ready_at <= {_T}
      AND c.lane = ANY ($2::text[]) AND c.task = ANY ($3::text[]) AND c.priority BETWEEN 0 AND 3
    ORDER BY c.priority, c.ready_at, c.id LIMIT $7::integer + 1"""  # noqa: S608


def _claim_sql(
    completions: str = "", ids: str = "NULL::text[]", *, gated: bool = False, named: bool = False, ahead: str = ""
) -> str:
    """Return SQL for a claim in one statement, which claims nothing if there is a *hard* candidate.

    A candidate is hard if it crashed before or has gates. With `gated`, gates make a candidate hard only if one of them
    may be full. `completions` and `ids`: SQL for CTEs that complete runs, and for the ids of the completed runs.
    `named`: claim only runs whose ids are sent. `ahead`: SQL for how many milliseconds ahead of its time a run may be
    claimed; '': 0.

    Parameters: now, lanes, tasks, limit, owner, ttl, depth (how many due runs to read), the ready times from which to
    read, by priority, or (if `named`) ids of runs, then `ahead` or the parameters of `completions`.

    The first row is about the claim: its instant `now`; `hard`, true if there is a hard candidate; `got`, how many
    candidates were locked; `due`, how many runs are due, counted to `depth` + 1; `next_at`, when to claim again; and
    the `ids` of completed runs. A row for each claimed run, with its payload, follows.
    """
    hard = "c.crashes > 0" if gated else "c.gates IS NOT NULL OR c.crashes > 0"
    or_full = " OR (SELECT yes FROM full_)" if gated else ""
    heads = _NAMED_HEADS if named else _due_heads_sql("$7::integer + 1", _T, "$8::bigint[]", ahead)
    then = _next_ready_ahead_sql(_T, ahead) if ahead else _next_ready_sql(_T)
    if named:  # other runs than the named ones may be due
        then = _first_ready_sql(_T, "ARRAY(SELECT m.id FROM c m)")
    starts = "greatest(t.now, r.ready_at)" if ahead else "t.now"
    return f"""
WITH t AS MATERIALIZED (SELECT {NOW_SQL} AS now),{completions}
heads AS MATERIALIZED ({heads}),
c AS MATERIALIZED (
    SELECT c.id, c.gates, {hard} AS hard FROM §run c
    WHERE c.id = ANY (ARRAY(SELECT h.id FROM heads h LIMIT $7::integer)) AND {_STILL_WAITS}
    ORDER BY c.priority, c.ready_at, c.id LIMIT $4::integer FOR UPDATE SKIP LOCKED),{_ENTERED if gated else ""}
h AS MATERIALIZED (
    SELECT coalesce(bool_or(c.hard), false){or_full} AS hard, count(*) AS got, (SELECT count(*) FROM heads) AS due
    FROM c),
u AS (
    UPDATE §run r {_SET_STARTED} owner = $5, lease_until = t.now + $6::bigint, started_at = {starts}
    FROM t, c WHERE r.id = c.id AND NOT (SELECT h.hard FROM h)
    RETURNING {run_columns("r")}),{_ENTER if gated else ""}
e AS ({_APPEND_STARTED})
SELECT t.now, h.hard, h.got, h.due,
       CASE WHEN h.due > $4 THEN t.now ELSE ({then}) END AS next_at,
       {ids} AS ids, {NO_RUN}, NULL::text AS data
FROM t, h
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, {run_columns("u")}, b.data FROM u LEFT JOIN §body b ON b.id = u.body
"""  # noqa: S608


#: A claim of runs without gates.
CLAIM = _claim_sql()
#: A claim of runs whose ids are sent, in place of the low-water marks. The runs must have no gates.
CLAIM_NAMED = _claim_sql(named=True)
#: A claim of runs whose gates all have room; if a gate refuses one of the runs, none is claimed.
CLAIM_THROUGH_GATES = _claim_sql(gated=True)
#: A claim through gates that also takes runs up to $9 milliseconds ahead of their time.
CLAIM_AHEAD = _claim_sql(gated=True, ahead="$9::bigint")
#: Completes runs (parameters from $9 on) and claims runs without gates, in one commit.
COMPLETE_AND_CLAIM = _claim_sql(f"{complete_runs_ctes(9)},", "(SELECT array_agg(s.id) FROM s)")
#: Parameters: now, lanes, tasks. Returns the instant, and the first instant at which an offered run is or becomes
#: claimable.
FIND_FIRST_READY = f"""
WITH t AS MATERIALIZED (SELECT {NOW_SQL} AS now) SELECT t.now, ({_first_ready_sql(_T)}) AS next_at FROM t
"""  # noqa: S608
#: Parameters: now (not NULL), lanes, tasks. Returns `now`, and the first instant at which an offered run is or becomes
#: claimable. For a transaction whose instant is known.
FIND_FIRST_READY_AT = f"SELECT $1::bigint AS now, ({_first_ready_sql('$1::bigint')}) AS next_at"

# ── claims through full gates, in a transaction ─────────────────────────────

#: Parameters: now, lanes, tasks, depth, ahead. Of the first `depth` runs that are due or may be claimed ahead, locks
#: and returns those that no other transaction has locked.
LOCK_CANDIDATES = f"""
SELECT {run_columns("c")} FROM §run c
WHERE c.id = ANY (ARRAY(SELECT h.id FROM ({_due_heads_sql("$4::integer", "$1::bigint", ahead="$5::bigint")}) h))
  AND {_STILL_WAITS} AND c.ready_at <= $1::bigint + $5::bigint
ORDER BY c.priority, c.ready_at, c.id FOR UPDATE SKIP LOCKED
"""  # noqa: S608
#: Parameters: now, lanes, tasks, ids of runs. Locks and returns those of these runs that are due and that no other
#: transaction has locked.
LOCK_NAMED = f"""
SELECT {run_columns("c")} FROM §run c
WHERE c.id = ANY ($4::text[]) AND {_STILL_WAITS} AND c.ready_at <= $1::bigint
  AND c.lane = ANY ($2::text[]) AND c.task = ANY ($3::text[]) AND c.priority BETWEEN 0 AND 3
ORDER BY c.priority, c.ready_at, c.id FOR UPDATE SKIP LOCKED
"""  # noqa: S608
#: Parameters: gate names. Locks the gates in the order of names. All statements keep this order, so they cannot
#: deadlock.
LOCK_GATES = "SELECT name, max, held, closed_until FROM §gate WHERE name = ANY($1::text[]) ORDER BY name FOR UPDATE"
#: Parameters: gate names. Returns for each gate with parked runs the priority, ready time and id of the first of them.
FIND_FIRST_PARKED = """
SELECT n.name, f.priority, f.ready_at, f.id FROM unnest($1::text[]) AS n(name) CROSS JOIN LATERAL (
    SELECT r.priority, r.ready_at, r.id FROM §run r WHERE r.parked_on = n.name AND r.parked_on IS NOT NULL
    ORDER BY r.priority, r.ready_at, r.id LIMIT 1) f
"""
PARK_COLUMNS = {"id": "text", "gate": "text"}
#: Parameters: PARK_COLUMNS. Parks each run at its gate.
PARK = f"UPDATE §run r SET parked_on = i.gate FROM {unnest_columns(PARK_COLUMNS)} WHERE r.id = i.id"  # noqa: S608
#: Parameters: now, ids, owner, end of the lease, GATE_COUNT_COLUMNS of gates that are locked. Starts runs, appends
#: their events and enters the gates. Returns the runs with their payloads.
START_RUNS = f"""
WITH h AS (
    UPDATE §gate g SET held = g.held + i.times FROM {unnest_columns(GATE_COUNT_COLUMNS, 5)} WHERE g.name = i.name),
u AS (
    UPDATE §run r {_SET_STARTED} owner = $3, lease_until = $4::bigint, started_at = greatest($1::bigint, r.ready_at)
    WHERE r.id = ANY ($2::text[]) RETURNING {run_columns("r")}),
e AS ({_APPEND_STARTED})
SELECT {run_columns("u")}, b.data FROM u LEFT JOIN §body b ON b.id = u.body
"""  # noqa: S608
