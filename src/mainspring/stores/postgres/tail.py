"""Following the log while others write it: nothing is skipped, and nobody waits for a stranger's open transaction.

Numbers are taken before a transaction commits, so a smaller one may appear after a greater one. A number that is
missing is remembered with a transaction that began after it was missed; until all before that one are over it is
asked for again. A snapshot alone cannot say this: it does not know of transactions that are newer than all that ended.
"""

from __future__ import annotations

from typing import Any

from mainspring.model.events import Event
from mainspring.ports.following import number
from mainspring.stores.postgres.database import Database
from mainspring.stores.postgres.rows import event_columns, given, read_event

_HOLE_COLUMNS = {"low": "bigint", "high": "bigint"}
_COLUMNS = event_columns("e")
#: after, limit, holes → what came late, what is new, and which transactions are open: all as one moment saw it.
_FOLLOW = f"""
WITH x AS MATERIALIZED (
    SELECT pg_snapshot_xmin(s)::text::bigint AS oldest FROM pg_current_snapshot() s)
SELECT x.oldest, f.* FROM x LEFT JOIN (
    SELECT * FROM (SELECT {_COLUMNS} FROM §event e WHERE e.seq > $1 ORDER BY e.seq LIMIT $2) n
    UNION ALL
    SELECT {_COLUMNS} FROM {given(_HOLE_COLUMNS, 3)} JOIN §event e ON e.seq BETWEEN i.low AND i.high
) f ON true ORDER BY f.seq
"""  # noqa: S608 - column names, no input


#: A transaction of our own: whoever took a number before is older.
_LATER = "SELECT pg_current_xact_id()::text::bigint"
#: With so many holes nothing new is read until some are settled: a place must stay short enough for a header.
MAX_HOLES = 200


class Follower:
    """A place in the log that moves on; what commits late is given late, each event once.

    As a text a place is the greatest number seen, then the holes below it: `120;115-117@8812`.
    """

    def __init__(self, db: Database, place: int | str = 0) -> None:
        self._db = db
        head, _, rest = str(place).partition(";")
        self.after = number(head)
        #: First and last missing number, and a transaction that all who may still bring them are older than.
        self._holes: list[tuple[int, int, int]] = [_read_hole(part) for part in rest.split(",") if part]

    @property
    def holes(self) -> int:
        """How many stretches of numbers may still be filled."""
        return len(self._holes)

    async def next(self, limit: int) -> list[Event]:
        """What is new and what came late, in the order of numbers; empty when there is nothing."""
        return [event for _, event in await self.steps(limit)]

    async def steps(self, limit: int) -> list[tuple[str, Event]]:
        """The same, each with the place behind it: whoever goes on there gets all that follows, and nothing again."""
        low, high = [hole[0] for hole in self._holes], [hole[1] for hole in self._holes]
        wanted = limit if len(self._holes) < MAX_HOLES else 0
        async with self._db.reading() as session:
            records = await session.fetch(_FOLLOW, self.after, wanted, low, high)
            events = [read_event(_event(record)) for record in records if record["seq"] is not None]
            gaps = _gaps(self.after, [event.seq for event in events])
            later = (await session.row(_LATER))[0] if gaps else 0
        oldest = records[0]["oldest"]
        found: list[tuple[str, Event]] = []
        for event in events:
            if event.seq <= self.after:
                self._holes = [part for hole in self._holes for part in _without(hole, [event.seq])]
            else:
                if event.seq > self.after + 1:
                    self._holes.append((self.after + 1, event.seq - 1, later))
                self.after = event.seq
            found.append((self._place(), event))
        # Only now: a place in the middle of these events needs the holes of those behind it.
        self._holes = [hole for hole in self._holes if hole[2] > oldest]
        return found

    def _place(self) -> str:
        holes = ",".join(f"{low}-{high}@{later}" for low, high, later in self._holes)
        return f"{self.after};{holes}" if holes else str(self.after)


def _read_hole(text: str) -> tuple[int, int, int]:
    stretch, _, later = text.partition("@")
    low, _, high = stretch.partition("-")
    return number(low), number(high), number(later)


def _gaps(after: int, seqs: list[int]) -> bool:
    """True when numbers are missing between the new ones."""
    fresh = [seq for seq in seqs if seq > after]
    return bool(fresh) and fresh[-1] - after > len(fresh)


def _event(record: Any) -> Any:
    return record[1:]


def _without(hole: tuple[int, int, int], seqs: list[int]) -> list[tuple[int, int, int]]:
    """What is left of a hole when these numbers are no longer missing."""
    low, high, later = hole
    parts: list[tuple[int, int, int]] = []
    for seq in seqs:
        if low <= seq <= high:
            if seq > low:
                parts.append((low, seq - 1, later))
            low = seq + 1
    return [*parts, (low, high, later)] if low <= high else parts
