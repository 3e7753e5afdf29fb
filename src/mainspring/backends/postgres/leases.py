"""Named leases, one row each. Every term of a lease has a greater epoch than the term before it."""

from __future__ import annotations

from mainspring.backends.postgres.database import Database
from mainspring.backends.postgres.rows import NOW_SQL, storable_text
from mainspring.model.instant import Ms
from mainspring.model.lease import Lease

LEASE_COLUMNS = "name, owner, epoch, expires_at, renewed_at, data, live"
#: The greatest character. In the order of names, a prefix followed by it comes after all names with that prefix.
HIGHEST_CHARACTER = "\U0010ffff"
#: Parameters: now, name, owner, ttl, data. Returns the lease; no row if another term has not ended. The condition is on
#: the row itself, so of concurrent owners only the first to lock the row gets the lease.
_TAKE = f"""
WITH t AS MATERIALIZED (SELECT {NOW_SQL} AS now)
INSERT INTO §lease AS l ({LEASE_COLUMNS})
SELECT $2, $3, 1, t.now + $4::bigint, t.now, $5::text, true FROM t
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, epoch = l.epoch + 1, expires_at = excluded.expires_at,
    renewed_at = excluded.renewed_at, data = excluded.data, live = true
WHERE NOT l.live OR l.expires_at <= excluded.renewed_at
RETURNING {LEASE_COLUMNS}
"""  # noqa: S608 - column names, no input
#: Parameters: now, name, owner, ttl, data or NULL, epoch. Returns the lease; no row if the owner's term has ended.
_RENEW = f"""
UPDATE §lease l SET expires_at = t.now + $4::bigint, renewed_at = t.now, data = coalesce($5::text, l.data)
FROM (SELECT {NOW_SQL} AS now) t
WHERE l.name = $2 AND l.owner = $3 AND l.epoch = $6::integer AND l.live AND l.expires_at > t.now
RETURNING {LEASE_COLUMNS}
"""  # noqa: S608
_RELEASE = "UPDATE §lease SET live = false WHERE name = $1 AND owner = $2 AND epoch = $3 AND live RETURNING name"


async def lease(
    db: Database, name: str, owner: str, ttl: Ms, epoch: int | None, data: str | None, now: Ms | None
) -> Lease | None:
    """Acquire a lease that is free or expired (`epoch` None), or renew the owner's term `epoch`; return the lease.

    Return None if another term holds the lease, or the term to renew has ended. The lease ends in `ttl` milliseconds.
    `data`: a text to store with the lease; None in a renewal leaves the stored text as it is. `now`: the instant of a
    test; None: the server's time.
    """
    term = (db.now(now), storable_text(name), storable_text(owner), ttl, storable_text(data))
    async with db.single_statement("lease") as session:
        row = await session.row(_TAKE, *term) if epoch is None else await session.row(_RENEW, *term, epoch)
    return None if row is None else Lease(*row)


async def release(db: Database, name: str, owner: str, epoch: int) -> bool:
    """End the owner's term `epoch` of a lease early, and return True.

    Return False, with nothing changed, if a newer term has replaced this term, or the lease was released or does not
    exist.
    """
    async with db.single_statement("lease") as session:
        return await session.row(_RELEASE, storable_text(name), storable_text(owner), epoch) is not None
