"""Named leases: every term has a greater epoch than the term before, because the row of a lease stays after a term."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.backends.redis.database import Database
from mainspring.backends.redis.scripts import load
from mainspring.model.instant import Ms
from mainspring.model.lease import Lease
from mainspring.ports.store import Leases

_ACQUIRE = load("lease", "clock", "lease")
_RELEASE = load("release")
_FIND = load("find_leases", "clock", "find_leases")


async def lease(
    db: Database, name: str, owner: str, ttl: Ms, epoch: int | None, data: str | None, now: Ms | None
) -> Lease | None:
    """Acquire a lease that is free or expired (`epoch` None), or renew the owner's term `epoch`; return the lease.

    Return None if another term holds the lease, or the term to renew has ended. The lease ends in `ttl` milliseconds.
    `data`: a text to store with the lease; None in a renewal leaves the stored text as it is. `now`: the instant of a
    test; None: the server's time.
    """
    epoch_argument = "" if epoch is None else epoch
    data_arguments = (0, "") if data is None else (1, data)
    row = await db.run_write(_ACQUIRE, db.now(now), name, owner, ttl, epoch_argument, *data_arguments)
    return None if row is None else _parse_lease(name, row)


async def release(db: Database, name: str, owner: str, epoch: int) -> bool:
    """End the owner's term `epoch` of a lease early, and return True.

    Return False, with nothing changed, if a newer term has replaced this term, or the lease was released or does not
    exist.
    """
    return bool(await db.run_write(_RELEASE, name, owner, epoch))


async def find(db: Database, query: Leases) -> list[Lease]:
    """Return the leases whose names begin with the query's prefix, in the order of names.

    `live` is False for a released and for an expired lease.
    """
    now, *found = await db.run_script(_FIND, db.now(None), query.prefix, query.after or "", query.limit)
    return [_parse_lease(name.decode(), row).at(now) for name, row in zip(found[::2], found[1::2], strict=True)]


def _parse_lease(name: str, packed: bytes) -> Lease:
    owner, epoch, expires_at, renewed_at, data, live = msgspec.msgpack.decode(packed, type=tuple[Any, ...])
    return Lease(name, owner, epoch, expires_at, renewed_at, None if data is False else data, live)
