"""How many bytes a row takes in SQLite's file, counted by its record format."""

from __future__ import annotations

import sqlite3
from typing import Any


def event_bytes(path: str) -> dict[str, int]:
    """The largest `RunStarted` and the largest empty `RunSucceeded` of a file, each with its index entry beside it."""
    db = sqlite3.connect(path)
    try:
        found = {}
        for kind in ("RunStarted", "RunSucceeded"):
            rows = db.execute("SELECT * FROM event WHERE type = ? ORDER BY seq DESC LIMIT 1000", (kind,)).fetchall()
            found[f"{kind}_bytes"] = max((cell_bytes(row[0], (None, *row[1:])) for row in rows), default=0)
        return found
    finally:
        db.close()


def cell_bytes(rowid: int, values: tuple[Any, ...]) -> int:
    """A table's leaf cell: payload length, rowid, header, values, and its slot in the page's directory."""
    types = [_serial_type(value) for value in values]
    header = sum(_varint(kind) for kind, _ in types)
    header += _varint(header + 1)
    payload = header + sum(size for _, size in types)
    return 2 + _varint(payload) + _varint(rowid) + payload


def _serial_type(value: Any) -> tuple[int, int]:
    """The type's number and the bytes of the value."""
    if value is None:
        return 0, 0
    if isinstance(value, int):
        if value in (0, 1):
            return 8 + value, 0
        for kind, size in ((1, 1), (2, 2), (3, 3), (4, 4), (5, 6)):
            if -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1):
                return kind, size
        return 6, 8
    if isinstance(value, float):
        return 7, 8
    data = value.encode() if isinstance(value, str) else bytes(value)
    return 2 * len(data) + (13 if isinstance(value, str) else 12), len(data)


def _varint(value: int) -> int:
    size = 1
    while value >= 128 and size < 9:
        value >>= 7
        size += 1
    return size
