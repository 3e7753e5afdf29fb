"""Kept things: rows beside the log, each unique by kind and id."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.instant import Ms
from mainspring.model.kept import Kept
from mainspring.ports.store import KeptOnes
from mainspring.stores.postgres.database import Database, Session
from mainspring.stores.postgres.rows import NOW, plain_text

#: now, kind, id, data, created or 0, expires, whether what is there must give way
_KEEP = f"""
WITH t AS MATERIALIZED (SELECT {NOW} AS now)
INSERT INTO §kept AS k (kind, id, data, created_at, expires_at)
SELECT $2, $3, $4, coalesce(nullif($5::bigint, 0), t.now), $6::bigint FROM t
ON CONFLICT (kind, id) DO UPDATE
SET data = excluded.data, created_at = excluded.created_at, expires_at = excluded.expires_at
WHERE $7::boolean OR k.expires_at <= (SELECT t.now FROM t)
RETURNING k.id
"""  # noqa: S608 - no input
#: now, kind, after, limit, ids or NULL
_FIND = f"""
SELECT k.kind, k.id, k.data, k.created_at, k.expires_at FROM §kept k, (SELECT {NOW} AS now) t
WHERE k.kind = $2 AND k.id > $3 AND (k.expires_at IS NULL OR k.expires_at > t.now)
  AND ($5::text[] IS NULL OR k.id = ANY ($5::text[]))
ORDER BY k.id LIMIT $4
"""  # noqa: S608
#: now, limit
EXPIRED = """
SELECT kind, id FROM §kept WHERE expires_at <= $1 AND expires_at IS NOT NULL
ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
"""
REMOVE = "DELETE FROM §kept k USING unnest($1::text[], $2::text[]) AS i(kind, id) WHERE (k.kind, k.id) = (i.kind, i.id)"


async def keep(db: Database, items: Sequence[Kept], replace: bool, now: Ms | None) -> list[bool]:
    """Write what is not there, has expired, or is to be replaced."""
    at = db.now(now)
    async with db.transaction("keep") as session:
        answers = []
        for one in items:
            key = (plain_text(one.kind), plain_text(one.id), plain_text(one.data))
            row = await session.row(_KEEP, at, *key, one.created_at, one.expires_at, replace)
            answers.append(row is not None)
    return answers


async def forget(db: Database, kind: str, ids: Sequence[str]) -> int:
    """Remove these; how many were there."""
    sql = "DELETE FROM §kept WHERE kind = $1 AND id = ANY ($2::text[]) RETURNING id"
    async with db.single("forget") as session:
        return len(await session.fetch(sql, plain_text(kind), [plain_text(name) for name in ids]))


async def find(db: Database, session: Session, q: KeptOnes) -> list[Kept]:
    """Answer `KeptOnes`."""
    ids = None if q.ids is None else [plain_text(name) for name in q.ids]
    rows = await session.fetch(_FIND, db.now(None), plain_text(q.kind), plain_text(q.after or ""), q.limit, ids)
    return [Kept(**dict(row)) for row in rows]
