"""The store's `lease` and `release`: named leases. A released lease keeps its row, so each term has a higher epoch."""

from __future__ import annotations

from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.find import LEASE_JSON, read_leases
from mainspring.model.instant import Ms
from mainspring.model.lease import Lease

_KNOWN = f"SELECT json_group_array({LEASE_JSON}) FROM lease WHERE name = ?"  # noqa: S608
_PUT = """
INSERT OR REPLACE INTO lease (name, owner, epoch, expires_at, renewed_at, data, live) VALUES (?, ?, ?, ?, ?, ?, 1)
"""


def lease(
    db: Database, name: str, owner: str, ttl: Ms, epoch: int | None, data: str | None, now: Ms | None
) -> Lease | None:
    """Begin a new term of a lease (`epoch` None) or renew its term `epoch`; return the lease, or None if refused.

    A new term is refused while another term lasts. A renewal is refused if the term is not the owner's or has ended.
    The term ends `ttl` ms from now. `data` is stored with it; None keeps the text of a term that is renewed. `now`: the
    time to use, for tests; None: what the clock shows.

    A read without a transaction comes first: most attempts to take a lease are refused, and need no write.
    """
    wall, lease_now = db.clocks(now)
    with db.read():
        term = _term(db, name, owner, epoch, data, lease_now)
    if term is None:
        return None
    with db.write("lease"):
        term = _term(db, name, owner, epoch, data, lease_now)
        if term is not None:
            number, text = term
            db.run(_PUT, name, owner, number, lease_now + ttl, wall, text)
    return None if term is None else Lease(name, owner, term[0], lease_now + ttl, wall, term[1])


def _term(
    db: Database, name: str, owner: str, epoch: int | None, data: str | None, lease_now: Ms
) -> tuple[int, str | None] | None:
    """Return (epoch, data) to write for the term that the owner asks for, or None if the term is refused.

    `epoch`: None for a new term, else the term to renew. `data`: None keeps the stored text of a term that is renewed.
    `lease_now`: the present time by the clock of leases.
    """
    old = _read_lease(db, name)
    live = old is not None and old.live and old.expires_at > lease_now
    if epoch is None:
        return None if live else (1 if old is None else old.epoch + 1, data)
    if old is None or not live or (old.owner, old.epoch) != (owner, epoch):
        return None
    return epoch, old.data if data is None else data


def _read_lease(db: Database, name: str) -> Lease | None:
    found = read_leases(db.value(_KNOWN, name))
    return found[0] if found else None


def release(db: Database, name: str, owner: str, epoch: int) -> bool:
    """End the owner's term `epoch` now and return True.

    Return False if the term was released before or is not the lease's present term.
    """
    with db.write("lease"):
        ended = db.run(
            "UPDATE lease SET live = 0 WHERE name = ? AND owner = ? AND epoch = ? AND live = 1", name, owner, epoch
        ).rowcount
    return ended == 1
