"""The store's `put` and `remove`, and its query `KeyValues`: entries that no event carries, unique by kind and id."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.rows import pack
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import KeyValue
from mainspring.ports.store import KeyValues

#: Parameters: kind, id, data, created_at, expires_at, now, whether to replace an entry that has not expired.
_PUT = """
INSERT INTO kept (kind, id, data, created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT DO UPDATE SET data = excluded.data, created_at = excluded.created_at, expires_at = excluded.expires_at
WHERE ?7 OR kept.expires_at <= ?6
"""
#: Parameters: kind, id of the last entry of the page before, now, limit, ids or NULL.
_FIND = """
SELECT kind, id, data, created_at, expires_at FROM kept
WHERE kind = ?1 AND id > ?2 AND (expires_at IS NULL OR expires_at > ?3)
  AND (?5 IS NULL OR id IN (SELECT value FROM json_each(?5)))
ORDER BY id LIMIT ?4
"""
#: Parameters: now, limit. Returns [kind, id] of expired entries.
EXPIRED_ENTRIES = """
SELECT json_group_array(json_array(kind, id)) FROM (
    SELECT kind, id FROM kept WHERE expires_at <= ?1 AND expires_at IS NOT NULL ORDER BY expires_at LIMIT ?2)
"""
#: Rows: [kind, id].
REMOVE = """
DELETE FROM kept WHERE (kind, id) IN (SELECT j.value ->> 0, j.value ->> 1 FROM json_each(?1) j)
"""


def put(db: Database, items: Sequence[KeyValue], replace: bool, now: Ms | None) -> list[bool]:
    """Write each entry that is new or replaces an expired one; return for each whether it was written.

    `replace`: also overwrite entries that have not expired. `now`: the time to use, for tests; None: what the clock
    shows.
    """
    wall, _ = db.clocks(now)
    with db.write("keep"):
        return [
            db.run(_PUT, one.kind, one.id, one.data, one.created_at or wall, one.expires_at, wall, replace).rowcount
            == 1
            for one in items
        ]


def remove(db: Database, kind: str, ids: Sequence[str]) -> int:
    """Remove entries of one kind; return how many existed."""
    with db.write("forget"):
        return db.run(
            "DELETE FROM kept WHERE kind = ?1 AND id IN (SELECT value FROM json_each(?2))", kind, pack(list(ids))
        ).rowcount


def find(db: Database, q: KeyValues) -> list[KeyValue]:
    """Return the entries of one kind that match the query and have not expired, in the order of their ids.

    To be called inside `db.read()`.
    """
    now, _ = db.clocks(None)
    ids = None if q.ids is None else pack(list(q.ids))
    return [
        KeyValue(kind=kind, id=name, data=data, created_at=created_at, expires_at=expires_at)
        for kind, name, data, created_at, expires_at in db.run(_FIND, q.kind, q.after or "", now, q.limit, ids)
    ]
