"""Key-value entries: rows beside the log, each unique by kind and id, which may expire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.backends.redis.database import Argument, Database
from mainspring.backends.redis.scripts import load
from mainspring.model.instant import Ms
from mainspring.model.keyvalue import KeyValue
from mainspring.ports.store import KeyValues

_PUT = load("put_keyvalues", "clock", "put_keyvalues")
_REMOVE = load("remove_keyvalues")
_FIND = load("find_keyvalues", "clock", "find_keyvalues")
_FIND_BY_ID = load("find_keyvalues_by_id", "clock", "find_keyvalues_by_id")


async def put(db: Database, items: Sequence[KeyValue], replace: bool, now: Ms | None) -> list[bool]:
    """Write key-value entries; return for each entry True if it was written.

    An entry that exists and has not expired is only overwritten if `replace` is True. `now`: the instant of a test;
    None: the server's time. It decides what has expired, and is the time of creation of an entry without one.
    """
    arguments: list[Argument] = [db.now(now), int(replace)]
    for item in items:
        expires = "" if item.expires_at is None else item.expires_at
        arguments += (_name(item.kind, item.id), item.data, item.created_at, expires)
    return [bool(answer) for answer in await db.run_write(_PUT, *arguments)] if items else []


async def remove(db: Database, kind: str, ids: Sequence[str]) -> int:
    """Remove the entries of one kind with these ids; return how many existed, expired ones included."""
    return int(await db.run_write(_REMOVE, *(_name(kind, item) for item in ids))) if ids else 0


async def find(db: Database, query: KeyValues) -> list[KeyValue]:
    """Return the entries that match a query and have not expired, in the order of ids.

    The query names one kind, and all ids of this kind (`query.ids` None) or some.
    """
    if query.ids is None:
        found = await db.run_script(_FIND, db.now(None), _name(query.kind, ""), query.after or "", query.limit)
    else:
        after = query.after or ""
        ids = sorted({item for item in query.ids if item > after})
        found = await db.run_script(_FIND_BY_ID, db.now(None), *(_name(query.kind, item) for item in ids))
        del found[2 * query.limit :]
    return [_parse_entry(name, row) for name, row in zip(found[::2], found[1::2], strict=True)]


def _name(kind: str, item: str) -> str:
    """Return the name of an entry in Redis: its kind, NUL, its id (`item`)."""
    return f"{kind}\0{item}"


def _parse_entry(name: bytes, packed: bytes) -> KeyValue:
    kind, _, item = name.decode().partition("\0")
    data, created_at, expires_at = msgspec.msgpack.decode(packed, type=tuple[Any, ...])
    return KeyValue(kind=kind, id=item, data=data, created_at=created_at, expires_at=expires_at or None)
