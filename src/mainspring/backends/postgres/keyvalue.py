"""Key-value entries: rows beside the log, unique by kind and id, which may expire."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.backends.postgres.database import Database, Session
from mainspring.backends.postgres.rows import NOW_SQL, storable_text
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import KeyValue
from mainspring.ports.store import KeyValues

#: Parameters: now, kind, id, data, instant of creation (0: now), expiry or NULL, whether to replace an entry that has
#: not expired. Returns the id if the entry was written, else no row.
_KEEP = f"""
WITH t AS MATERIALIZED (SELECT {NOW_SQL} AS now)
INSERT INTO §kept AS k (kind, id, data, created_at, expires_at)
SELECT $2, $3, $4, coalesce(nullif($5::bigint, 0), t.now), $6::bigint FROM t
ON CONFLICT (kind, id) DO UPDATE
SET data = excluded.data, created_at = excluded.created_at, expires_at = excluded.expires_at
WHERE $7::boolean OR k.expires_at <= (SELECT t.now FROM t)
RETURNING k.id
"""  # noqa: S608 - no input
#: Parameters: now, kind, id after which to begin, limit, ids (NULL: all). Returns entries that have not expired.
_FIND = f"""
SELECT k.kind, k.id, k.data, k.created_at, k.expires_at FROM §kept k, (SELECT {NOW_SQL} AS now) t
WHERE k.kind = $2 AND k.id > $3 AND (k.expires_at IS NULL OR k.expires_at > t.now)
  AND ($5::text[] IS NULL OR k.id = ANY ($5::text[]))
ORDER BY k.id LIMIT $4
"""  # noqa: S608
#: Parameters: now, limit. Locks expired entries and returns their kinds and ids; skips entries that others have locked.
EXPIRED_ENTRIES = """
SELECT kind, id FROM §kept WHERE expires_at <= $1 AND expires_at IS NOT NULL
ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
#: Parameters: an array of kinds and an array of ids, which together name the entries. Deletes these entries.
DELETE_ENTRIES = (
    "DELETE FROM §kept k USING unnest($1::text[], $2::text[]) AS i(kind, id) WHERE (k.kind, k.id) = (i.kind, i.id)"
)


async def put(db: Database, items: Sequence[KeyValue], replace: bool, now: Ms | None) -> list[bool]:
    """Write entries in one transaction; return for each entry True if it was written.

    An entry that exists and has not expired is only overwritten if `replace` is True. `now`: the instant of a test;
    None: the server's time. It decides what has expired, and is the time of creation of an entry without one.
    """
    at = db.now(now)
    async with db.transaction("keep") as session:
        answers = []
        for one in items:
            key = (storable_text(one.kind), storable_text(one.id), storable_text(one.data))
            row = await session.row(_KEEP, at, *key, one.created_at, one.expires_at, replace)
            answers.append(row is not None)
    return answers


async def remove(db: Database, kind: str, ids: Sequence[str]) -> int:
    """Remove the entries of one kind with these ids; return how many existed, expired entries included."""
    sql = "DELETE FROM §kept WHERE kind = $1 AND id = ANY ($2::text[]) RETURNING id"
    async with db.single_statement("forget") as session:
        return len(await session.fetch(sql, storable_text(kind), [storable_text(name) for name in ids]))


async def find(db: Database, session: Session, q: KeyValues) -> list[KeyValue]:
    """Return the entries that match a query and have not expired, in the order of ids.

    The query names one kind, and all ids of this kind (`q.ids` None) or some.
    """
    ids = None if q.ids is None else [storable_text(name) for name in q.ids]
    rows = await session.fetch(_FIND, db.now(None), storable_text(q.kind), storable_text(q.after or ""), q.limit, ids)
    return [KeyValue(**dict(row)) for row in rows]
