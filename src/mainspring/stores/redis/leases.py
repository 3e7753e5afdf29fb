"""Named leases: a term has an epoch that only grows; the row outlives its terms."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from mainspring.model.instant import Ms
from mainspring.ports.store import Lease, Leases
from mainspring.stores.redis.database import Database
from mainspring.stores.redis.scripts import load

_TAKE = load("lease", "clock", "lease")
_RELEASE = load("release")
_FIND = load("find_leases", "clock", "find_leases")


async def lease(
    db: Database, name: str, owner: str, ttl: Ms, epoch: int | None, data: str | None, now: Ms | None
) -> Lease | None:
    """Take a lease that is free or ended (epoch None), or renew the term `epoch`; None when refused."""
    term = "" if epoch is None else epoch
    given = (0, "") if data is None else (1, data)
    row = await db.write(_TAKE, db.now(now), name, owner, ttl, term, *given)
    return None if row is None else _lease(name, row)


async def release(db: Database, name: str, owner: str, epoch: int) -> bool:
    """End a term early."""
    return bool(await db.write(_RELEASE, name, owner, epoch))


async def find(db: Database, query: Leases) -> list[Lease]:
    """Answer `Leases`."""
    now, *found = await db.call(_FIND, db.now(None), query.prefix, query.after or "", query.limit)
    rows = [_lease(name.decode(), row) for name, row in zip(found[::2], found[1::2], strict=True)]
    return [replace(row, live=row.live and row.expires_at > now) for row in rows]


def _lease(name: str, packed: bytes) -> Lease:
    owner, epoch, expires_at, renewed_at, data, live = msgspec.msgpack.decode(packed, type=tuple[Any, ...])
    return Lease(name, owner, epoch, expires_at, renewed_at, None if data is False else data, live)
