"""A cursor in the event log that skips no event while others write, and does not wait for open transactions.

An event takes its number, `seq`, before its transaction commits, so a smaller number may appear after a greater number.
The cursor stores each gap in the numbers together with the id of a transaction that began after the gap was seen. It
reads the gap again until all transactions with smaller ids have ended.

Why the cursor begins a transaction of its own to get this id: the snapshot in which the gap was seen does not tell
which transactions may fill the gap. It lacks open transactions whose id is greater than the ids of all ended
transactions.
"""

from __future__ import annotations

from typing import NamedTuple

from mainspring.backends.postgres.database import Database
from mainspring.backends.postgres.rows import event_columns, read_event, unnest_columns
from mainspring.model.events import Event
from mainspring.ports.log_cursor import parse_position

_GAP_COLUMNS = {"low": "bigint", "high": "bigint"}
_COLUMNS = event_columns("e")
#: Parameters: number after which to begin, limit, lowest and highest numbers of gaps. Returns, from one snapshot, late
#: events in gaps and new events, each with the id of the oldest open transaction; without events, one row with this id.
_READ_EVENTS_AND_GAPS = f"""
WITH x AS MATERIALIZED (
    SELECT pg_snapshot_xmin(s)::text::bigint AS oldest FROM pg_current_snapshot() s)
SELECT x.oldest, f.* FROM x LEFT JOIN (
    SELECT * FROM (SELECT {_COLUMNS} FROM §event e WHERE e.seq > $1 ORDER BY e.seq LIMIT $2) n
    UNION ALL
    SELECT {_COLUMNS} FROM {unnest_columns(_GAP_COLUMNS, 3)} JOIN §event e ON e.seq BETWEEN i.low AND i.high
) f ON true ORDER BY f.seq
"""  # noqa: S608 - column names, no input


#: Returns the id of a new transaction. Every transaction that took an event's number before has a smaller id.
_OWN_TRANSACTION_ID = "SELECT pg_current_xact_id()::text::bigint"
#: With this many gaps, no new events are read until some gaps are closed: the text of a position must fit into an HTTP
#: header.
MAX_GAPS = 200


class _Gap(NamedTuple):
    """A gap in the log: the event numbers `low` to `high`, which were missing when the cursor passed them.

    Only transactions with an id smaller than `newer_transaction` may still write events with these numbers.
    """

    low: int
    high: int
    newer_transaction: int


class PostgresLogCursor:
    """A position in the log that advances with each read. Each event is returned once, even if it commits late.

    As a text, a position is the greatest number of a returned event, then the gaps below it, each with its
    `newer_transaction`: `120;115-117@8812`.
    """

    def __init__(self, db: Database, position: int | str = 0) -> None:
        """Place the cursor behind `position`: a position's text, or an event's number; 0: the beginning of the log.

        Raises: `InvalidInput` if the text is not a position.
        """
        self._db = db
        head, _, rest = str(position).partition(";")
        #: The greatest number (`seq`) of a returned event.
        self.after = parse_position(head)
        self._gaps = [_parse_gap(part) for part in rest.split(",") if part]

    @property
    def gaps(self) -> int:
        """The number of gaps (missing event numbers in a row) below this position that late events may still fill."""
        return len(self._gaps)

    async def read_events(self, limit: int) -> list[Event]:
        """Return all late events and up to `limit` new events, in the order of their numbers; advance past them.

        A late event appeared after this cursor had passed its number. While there are MAX_GAPS gaps or more, return
        late events only.
        """
        return [event for _, event in await self.read(limit)]

    async def read(self, limit: int) -> list[tuple[str, Event]]:
        """Return all late events and up to `limit` new events as (position behind the event, event); advance past them.

        A late event appeared after this cursor had passed its number. A cursor that is opened at one of the positions
        returns all events that follow in the list or are written later, and repeats none. While there are MAX_GAPS gaps
        or more, return late events only.
        """
        low, high = [gap.low for gap in self._gaps], [gap.high for gap in self._gaps]
        wanted = limit if len(self._gaps) < MAX_GAPS else 0
        async with self._db.read_only() as session:
            records = await session.fetch(_READ_EVENTS_AND_GAPS, self.after, wanted, low, high)
            events = [read_event(record[1:]) for record in records if record["seq"] is not None]
            has_gaps = _has_gaps(self.after, [event.seq for event in events])
            transaction = (await session.row(_OWN_TRANSACTION_ID))[0] if has_gaps else 0
        found = [(self._advance(event.seq, transaction), event) for event in events]
        # Not earlier: positions in the middle of `found` still need the gaps from which the events behind them come.
        oldest = records[0]["oldest"]
        self._gaps = [gap for gap in self._gaps if gap.newer_transaction > oldest]
        return found

    def _advance(self, seq: int, transaction: int) -> str:
        """Advance past the event with the number `seq` and return the position behind it.

        If numbers before it are missing, store them as a gap. `transaction`: the id of a transaction that began after
        the event was read; 0 if no number is missing.
        """
        if seq <= self.after:
            self._gaps = [part for gap in self._gaps for part in _subtract(gap, seq)]
            return self._position()
        if seq > self.after + 1:
            self._gaps.append(_Gap(self.after + 1, seq - 1, transaction))
        self.after = seq
        return self._position()

    def _position(self) -> str:
        gaps = ",".join(f"{gap.low}-{gap.high}@{gap.newer_transaction}" for gap in self._gaps)
        return f"{self.after};{gaps}" if gaps else str(self.after)


def _parse_gap(text: str) -> _Gap:
    numbers, _, transaction = text.partition("@")
    low, _, high = numbers.partition("-")
    return _Gap(parse_position(low), parse_position(high), parse_position(transaction))


def _has_gaps(after: int, seqs: list[int]) -> bool:
    """Return True if a number between `after` and the greatest of `seqs` is missing.

    `seqs`: the numbers of the events that were read, in ascending order.
    """
    new = [seq for seq in seqs if seq > after]
    return bool(new) and new[-1] - after > len(new)


def _subtract(gap: _Gap, seq: int) -> list[_Gap]:
    """Return what is left of a gap without the event number `seq`: at most two gaps.

    If the number is not in the gap, return the gap itself.
    """
    if not gap.low <= seq <= gap.high:
        return [gap]
    parts = gap._replace(high=seq - 1), gap._replace(low=seq + 1)
    return [part for part in parts if part.low <= part.high]
