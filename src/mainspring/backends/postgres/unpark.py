"""Unparking: runs parked at a gate become claimable again when the gate has room."""

from __future__ import annotations

from mainspring.backends.postgres.database import Database
from mainspring.backends.postgres.rows import NOW_SQL, unnest_columns
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms

#: Names of gates, each with a number of runs.
GATE_COUNT_COLUMNS = {"name": "text", "times": "integer"}

#: Parameters: now, limit. Returns the gates at which runs are parked, each with the number of parked runs, counted up
#: to the limit, and the instant. The gates are found by skipping through the index. Without parked runs, one row has
#: the instant.
_FIND_GATES_WITH_PARKED_RUNS = f"""
WITH RECURSIVE t AS MATERIALIZED (SELECT {NOW_SQL} AS now), waited(name) AS (
    SELECT min(r.parked_on) FROM §run r WHERE r.parked_on IS NOT NULL
    UNION ALL
    SELECT (SELECT min(r.parked_on) FROM §run r WHERE r.parked_on > w.name AND r.parked_on IS NOT NULL)
    FROM waited w WHERE w.name IS NOT NULL)
SELECT w.name, (SELECT count(*) FROM (
           SELECT 1 FROM §run p WHERE p.parked_on = w.name AND p.parked_on IS NOT NULL LIMIT $2::integer) q) AS waiting,
       g.max, g.held, g.closed_until, t.now
FROM t LEFT JOIN waited w ON w.name IS NOT NULL LEFT JOIN §gate g ON g.name = w.name
"""  # noqa: S608
#: Parameters: GATE_COUNT_COLUMNS. Unparks the first runs of each gate by priority and ready time, without rows locked
#: by others.
_UNPARK = f"""
WITH h AS MATERIALIZED (
    SELECT x.id FROM {unnest_columns(GATE_COUNT_COLUMNS)} CROSS JOIN LATERAL (
        SELECT p.id FROM §run p WHERE p.parked_on = i.name AND p.parked_on IS NOT NULL
        ORDER BY p.priority, p.ready_at, p.id LIMIT i.times) x)
UPDATE §run r SET parked_on = NULL
WHERE r.id IN (SELECT c.id FROM §run c WHERE c.id = ANY (ARRAY(SELECT h.id FROM h)) AND c.parked_on IS NOT NULL
               ORDER BY c.id FOR UPDATE SKIP LOCKED)
RETURNING r.id
"""  # noqa: S608


async def unpark(db: Database, limit: int, now: Ms | None) -> tuple[Ms, int]:
    """Unpark up to `limit` runs whose gates have room; return the instant and the number of unparked runs.

    Why the statement by which a run leaves a gate does not unpark others instead: its snapshot may be older than the
    commit that parked a run. `now`: the instant of a test; None: the server's time.
    """
    async with db.read_only() as session:
        rows = await session.fetch(_FIND_GATES_WITH_PARKED_RUNS, db.now(now), limit)
    wall: Ms = rows[0]["now"]
    counts: dict[str, int] = {}
    left = limit
    for name, waiting, most, held, closed_until, _ in rows if rows[0]["name"] is not None else ():
        room = limit if most is None else Gate(name, most, held, closed_until).room(wall)
        count = min(waiting, room, left)
        if count > 0:
            counts[name] = count
            left -= count
    if not counts:
        return wall, 0
    async with db.single_statement("due") as session:
        freed = await session.fetch(_UNPARK, list(counts), list(counts.values()))
    return wall, len(freed)
