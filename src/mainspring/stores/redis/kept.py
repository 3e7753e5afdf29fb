"""Kept things: rows beside the log, each unique by kind and id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.model.instant import Ms
from mainspring.model.kept import Kept
from mainspring.ports.store import KeptOnes
from mainspring.stores.redis.database import Database, Word
from mainspring.stores.redis.scripts import load

_KEEP = load("keep", "clock", "keep")
_FORGET = load("forget")
_FIND = load("find_kept", "clock", "find_kept")
_FIND_IDS = load("find_kept_ids", "clock", "find_kept_ids")


async def keep(db: Database, items: Sequence[Kept], replace: bool, now: Ms | None) -> list[bool]:
    """Write what is not there, has expired, or is to be replaced."""
    words: list[Word] = [db.now(now), int(replace)]
    for one in items:
        expires = "" if one.expires_at is None else one.expires_at
        words += (_name(one.kind, one.id), one.data, one.created_at, expires)
    return [bool(answer) for answer in await db.write(_KEEP, *words)] if items else []


async def forget(db: Database, kind: str, ids: Sequence[str]) -> int:
    """Remove these; how many were there."""
    return int(await db.write(_FORGET, *(_name(kind, one) for one in ids))) if ids else 0


async def find(db: Database, query: KeptOnes) -> list[Kept]:
    """Answer `KeptOnes`."""
    if query.ids is None:
        found = await db.call(_FIND, db.now(None), _name(query.kind, ""), query.after or "", query.limit)
    else:
        after = query.after or ""
        ids = sorted({one for one in query.ids if one > after})
        found = await db.call(_FIND_IDS, db.now(None), *(_name(query.kind, one) for one in ids))
        del found[2 * query.limit :]
    return [_kept(name, row) for name, row in zip(found[::2], found[1::2], strict=True)]


def _name(kind: str, one: str) -> str:
    return f"{kind}\0{one}"


def _kept(name: bytes, packed: bytes) -> Kept:
    kind, _, one = name.decode().partition("\0")
    data, created_at, expires_at = msgspec.msgpack.decode(packed, type=tuple[Any, ...])
    return Kept(kind=kind, id=one, data=data, created_at=created_at, expires_at=expires_at or None)
