"""Runs parked at a gate go back among the claimable ones when it has room."""

from __future__ import annotations

from mainspring.model.gate import Gate
from mainspring.model.instant import Ms
from mainspring.stores.postgres.database import Database
from mainspring.stores.postgres.rows import NOW, given

#: Gates and how many of each.
HOLD_COLUMNS = {"name": "text", "times": "integer"}

#: now, limit → the gates that runs wait at (found by skipping through the index), how many wait, counted up to limit;
#: and the time, if nobody waits.
_WAITED_AT = f"""
WITH RECURSIVE t AS MATERIALIZED (SELECT {NOW} AS now), waited(name) AS (
    SELECT min(r.parked_on) FROM §run r WHERE r.parked_on IS NOT NULL
    UNION ALL
    SELECT (SELECT min(r.parked_on) FROM §run r WHERE r.parked_on > w.name AND r.parked_on IS NOT NULL)
    FROM waited w WHERE w.name IS NOT NULL)
SELECT w.name, (SELECT count(*) FROM (
           SELECT 1 FROM §run p WHERE p.parked_on = w.name AND p.parked_on IS NOT NULL LIMIT $2::integer) q) AS waiting,
       g.max, g.held, g.closed_until, t.now
FROM t LEFT JOIN waited w ON w.name IS NOT NULL LEFT JOIN §gate g ON g.name = w.name
"""  # noqa: S608
#: gate names and how many of each may go: the first in the order of claims; what is being changed is left alone.
_UNPARK = f"""
WITH h AS MATERIALIZED (
    SELECT x.id FROM {given(HOLD_COLUMNS)} CROSS JOIN LATERAL (
        SELECT p.id FROM §run p WHERE p.parked_on = i.name AND p.parked_on IS NOT NULL
        ORDER BY p.priority, p.ready_at, p.id LIMIT i.times) x)
UPDATE §run r SET parked_on = NULL
WHERE r.id IN (SELECT c.id FROM §run c WHERE c.id = ANY (ARRAY(SELECT h.id FROM h)) AND c.parked_on IS NOT NULL
               ORDER BY c.id FOR UPDATE SKIP LOCKED)
RETURNING r.id
"""  # noqa: S608


async def unpark(db: Database, limit: int, now: Ms | None) -> tuple[Ms, int]:
    """Put parked runs whose gate has room back among the claimable ones: a statement of its own, seeing all that is."""
    async with db.reading() as session:
        rows = await session.fetch(_WAITED_AT, db.now(now), limit)
    wall: Ms = rows[0]["now"]
    going: dict[str, int] = {}
    left = limit
    for name, waiting, most, held, closed_until, _ in rows if rows[0]["name"] is not None else ():
        room = limit if most is None else Gate(name, most, held, closed_until).room(wall)
        count = min(waiting, room, left)
        if count > 0:
            going[name] = count
            left -= count
    if not going:
        return wall, 0
    async with db.single("due") as session:
        freed = await session.fetch(_UNPARK, list(going), list(going.values()))
    return wall, len(freed)
