"""Gates as they are written: their limits in one table, what is held of them in another."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mainspring.stores.sqlite import apply_sql as sql
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.rows import pack


def put_gates(db: Database, gates: list[tuple[Any, ...]]) -> None:
    """Rows of name, max, held, closed until."""
    packed = pack(gates)
    if any(held for _, _, held, _ in gates):
        db.run(sql.HOLD_NEW_GATES, packed)
    db.run(sql.UPSERT_GATES, packed)


def leave_gates(db: Database, names: list[str]) -> None:
    """Give back a slot for each time a gate is named."""
    if len(set(names)) == len(names):
        packed = pack(names)
        if db.run(sql.FREE_GATES, packed).rowcount == len(names):
            return
        # Those are free now and have no row any more: what is left is held by others as well.
        db.run(sql.LEAVE_EACH, packed)
        return
    counted = pack(list(Counter(names).items()))
    db.run(sql.LEAVE_GATES, counted)
    db.run(sql.FREE_LEFT_GATES, counted)
