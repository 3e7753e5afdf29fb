"""Named leases: a term has an epoch that only grows; the row outlives its terms."""

from __future__ import annotations

from mainspring.model.instant import Ms
from mainspring.ports.store import Lease
from mainspring.stores.postgres.database import Database
from mainspring.stores.postgres.rows import NOW, plain_text

LEASE_COLUMNS = "name, owner, epoch, expires_at, renewed_at, data, live"
#: No name goes on with a greater character: the end of a range of the primary key.
LAST = "\U0010ffff"
#: now, name, owner, ttl, data: the row itself decides, so two that want it at once are put in order by its lock.
_TAKE = f"""
WITH t AS MATERIALIZED (SELECT {NOW} AS now)
INSERT INTO §lease AS l ({LEASE_COLUMNS})
SELECT $2, $3, 1, t.now + $4::bigint, t.now, $5::text, true FROM t
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, epoch = l.epoch + 1, expires_at = excluded.expires_at,
    renewed_at = excluded.renewed_at, data = excluded.data, live = true
WHERE NOT l.live OR l.expires_at <= excluded.renewed_at
RETURNING {LEASE_COLUMNS}
"""  # noqa: S608 - column names, no input
#: now, name, owner, ttl, data, epoch
_RENEW = f"""
UPDATE §lease l SET expires_at = t.now + $4::bigint, renewed_at = t.now, data = coalesce($5::text, l.data)
FROM (SELECT {NOW} AS now) t
WHERE l.name = $2 AND l.owner = $3 AND l.epoch = $6::integer AND l.live AND l.expires_at > t.now
RETURNING {LEASE_COLUMNS}
"""  # noqa: S608
_RELEASE = "UPDATE §lease SET live = false WHERE name = $1 AND owner = $2 AND epoch = $3 AND live RETURNING name"


async def lease(
    db: Database, name: str, owner: str, ttl: Ms, epoch: int | None, data: str | None, now: Ms | None
) -> Lease | None:
    """Take a lease that is free or ended (epoch None), or renew the term `epoch`; None when refused."""
    term = (db.now(now), plain_text(name), plain_text(owner), ttl, plain_text(data))
    async with db.single("lease") as session:
        row = await session.row(_TAKE, *term) if epoch is None else await session.row(_RENEW, *term, epoch)
    return None if row is None else Lease(*row)


async def release(db: Database, name: str, owner: str, epoch: int) -> bool:
    """End a term early."""
    async with db.single("lease") as session:
        return await session.row(_RELEASE, plain_text(name), plain_text(owner), epoch) is not None
