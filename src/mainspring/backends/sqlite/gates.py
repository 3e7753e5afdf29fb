"""Writes of gates. A gate's limit and its number of holders are in two tables, because only the number changes often.

A gate without holders has no row in the table of holders.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from mainspring.backends.sqlite import apply_sql as sql
from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.rows import pack


def put_gates(db: Database, gates: list[tuple[Any, ...]]) -> None:
    """Store gates, given as rows of name, max, held and closed_until. Of a gate that exists only `max` is changed."""
    packed = pack(gates)
    if any(held for _, _, held, _ in gates):
        db.run(sql.HOLD_NEW_GATES, packed)
    db.run(sql.UPSERT_GATES, packed)


def release_gates(db: Database, names: list[str]) -> None:
    """Release one slot of a gate for each time that its name is in `names`. A name may be there several times."""
    if len(set(names)) == len(names):
        packed = pack(names)
        if db.run(sql.RELEASE_LAST_HOLDS, packed).rowcount == len(names):
            return
        # Gates with a single holder have lost their row by now. The following statement is for gates with more holders.
        db.run(sql.RELEASE_SINGLE_HOLDS, packed)
        return
    counted = pack(list(Counter(names).items()))
    db.run(sql.RELEASE_COUNTED_HOLDS, counted)
    db.run(sql.DELETE_FREE_GATES, counted)
