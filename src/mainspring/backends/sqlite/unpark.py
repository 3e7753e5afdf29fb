"""Unparking for the store's `due`: runs that wait at a gate become claimable when the gate has room."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.rows import WITH_ROWS, item, pack
from mainspring.model.gate import Gate
from mainspring.model.instant import Ms

#: Parameter: limit. Returns, for each gate at which runs wait: [name, number of waiting runs (counted up to the limit),
#: max, held, closed_until]. The recursion skips through the index from gate to gate, so few entries are read.
_WAITED_AT = """
WITH RECURSIVE waited(name) AS (
    SELECT min(parked_on) FROM run WHERE parked_on IS NOT NULL
    UNION ALL
    SELECT (SELECT min(parked_on) FROM run WHERE parked_on > waited.name AND parked_on IS NOT NULL)
    FROM waited WHERE waited.name IS NOT NULL)
SELECT json_group_array(json_array(w.name,
    (SELECT count(*) FROM (SELECT 1 FROM run p WHERE p.parked_on = w.name AND p.parked_on IS NOT NULL LIMIT ?1)),
    g.max, g.held, g.closed_until))
FROM waited w LEFT JOIN gate g ON g.name = w.name WHERE w.name IS NOT NULL
"""

#: Rows: [gate, count]; parameter: the greatest count. Unparks the first `count` runs of each gate in the order of
#: claims.
_UNPARK = f"""
{WITH_ROWS}
UPDATE run SET parked_on = NULL WHERE rid IN (
    SELECT x.value FROM (
        SELECT {item(1)} AS room, (
            SELECT json_group_array(h.rid) FROM (
                SELECT p.rid FROM run p INDEXED BY run_parked
                WHERE p.parked_on = {item(0)} AND p.parked_on IS NOT NULL
                ORDER BY p.priority, p.ready_at, p.id LIMIT ?2) h) AS head
        FROM j) q CROSS JOIN json_each(q.head) x
    WHERE x.key < q.room)
"""  # noqa: S608
_waited_rows = msgspec.json.Decoder(list[tuple[str, int, int | None, int | None, int | None]])


def unpark(db: Database, limit: int, wall: Ms) -> int:
    """Make up to `limit` parked runs claimable, as far as their gates have room, and return how many.

    `wall`: the present time. A read without a transaction comes first: in most calls no gate has room for a parked run.
    """
    with db.read():
        counts = _count_unparked(db.value(_WAITED_AT, limit), limit, wall)
    if not counts:
        return 0
    with db.write("due"):
        counts = _count_unparked(db.value(_WAITED_AT, limit), limit, wall)
        if counts:
            db.run(_UNPARK, pack(counts), max(count for _, count in counts))
    return sum(count for _, count in counts)


def _count_unparked(text: str, limit: int, wall: Ms) -> list[tuple[str, int]]:
    """Return (gate, number of runs to unpark) for each gate with room, at most `limit` runs in total.

    `text`: the answer of the query `_WAITED_AT`, as JSON. `wall`: the present time.
    """
    counts: list[tuple[str, int]] = []
    left = limit
    for name, waiting, *row in _waited_rows.decode(text):
        count = min(waiting, _gate_room(name, row, limit, wall), left)
        if count > 0:
            counts.append((name, count))
            left -= count
    return counts


def _gate_room(name: str, row: Iterable[Any], limit: int, wall: Ms) -> int:
    """Return how many runs the gate lets pass at the present time `wall`. `row`: its max, held and closed_until.

    A gate that does not exist, for which the three values are None, lets `limit` runs pass.
    """
    most, held, closed_until = row
    return limit if most is None else Gate(name, most, held, closed_until).room(wall)
