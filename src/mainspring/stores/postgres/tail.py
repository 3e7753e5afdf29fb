"""Following the log while others write it: nothing is skipped, and nobody waits for a stranger's open transaction.

Numbers are taken before a transaction commits, so a smaller one may appear after a greater one. A number that is
missing is remembered with the newest transaction there was; until all up to that one are over it is asked for again.
"""

from __future__ import annotations

from typing import Any

from mainspring.model.events import Event
from mainspring.stores.postgres.database import Database
from mainspring.stores.postgres.rows import event_columns, given, read_event

_HOLE_COLUMNS = {"low": "bigint", "high": "bigint"}
_COLUMNS = event_columns("e")
#: after, limit, holes → what came late, what is new, and which transactions are open: all as one moment saw it.
_FOLLOW = f"""
WITH x AS MATERIALIZED (
    SELECT pg_snapshot_xmin(s)::text::bigint AS oldest, pg_snapshot_xmax(s)::text::bigint AS newest
    FROM pg_current_snapshot() s)
SELECT x.oldest, x.newest, f.* FROM x LEFT JOIN (
    SELECT * FROM (SELECT {_COLUMNS} FROM §event e WHERE e.seq > $1 ORDER BY e.seq LIMIT $2) n
    UNION ALL
    SELECT {_COLUMNS} FROM {given(_HOLE_COLUMNS, 3)} JOIN §event e ON e.seq BETWEEN i.low AND i.high
) f ON true ORDER BY f.seq
"""  # noqa: S608 - column names, no input


class Follower:
    """A place in the log that moves on; what commits late is given late, each event once."""

    def __init__(self, db: Database, after: int) -> None:
        self._db = db
        self.after = after
        #: First and last missing number, and the newest transaction when they were missed.
        self._holes: list[tuple[int, int, int]] = []

    @property
    def holes(self) -> int:
        """How many stretches of numbers may still be filled."""
        return len(self._holes)

    async def next(self, limit: int) -> list[Event]:
        """What is new and what came late, in the order of numbers; empty when there is nothing."""
        low, high = [hole[0] for hole in self._holes], [hole[1] for hole in self._holes]
        async with self._db.reading() as session:
            records = await session.fetch(_FOLLOW, self.after, limit, low, high)
        oldest, newest = records[0]["oldest"], records[0]["newest"]
        events = [read_event(_event(record)) for record in records if record["seq"] is not None]
        seen = [event.seq for event in events]
        late = [seq for seq in seen if seq <= self.after]
        holes = [part for hole in self._holes if hole[2] > oldest for part in _without(hole, late)]
        for seq in seen[len(late) :]:
            if seq > self.after + 1 and newest > oldest:
                holes.append((self.after + 1, seq - 1, newest))
            self.after = seq
        self._holes = holes
        return events


def _event(record: Any) -> Any:
    return record[2:]


def _without(hole: tuple[int, int, int], seqs: list[int]) -> list[tuple[int, int, int]]:
    """What is left of a hole when these numbers are no longer missing."""
    low, high, newest = hole
    parts: list[tuple[int, int, int]] = []
    for seq in seqs:
        if low <= seq <= high:
            if seq > low:
                parts.append((low, seq - 1, newest))
            low = seq + 1
    return [*parts, (low, high, newest)] if low <= high else parts
