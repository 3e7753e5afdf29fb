"""Log cursors: objects that read the event log from a position on, each event once.

Positions are strings. A client may receive one and send it back later, to any instance on the store.
"""

from __future__ import annotations

from typing import Protocol

from mainspring.model.errors import InvalidInput
from mainspring.model.events import Event
from mainspring.ports.store import Store
from mainspring.ports.store_extras import CursorStore


class LogCursor(Protocol):
    """A reader's place in the event log, which moves forward with each read."""

    async def read(self, limit: int) -> list[tuple[str, Event]]:
        """Return up to `limit` new events, each with the position after it; an empty list if there are none yet.

        A cursor that is opened at the position of an event continues with the event after it. Events that became
        visible late, after events with greater numbers, are returned in addition to the `limit`.
        """
        ...


class SequentialCursor:
    """A cursor for stores in which events become visible in the order of their numbers.

    A position is the number of the last event that was read, as text.
    """

    def __init__(self, store: Store, position: str) -> None:
        self._store = store
        self._after = parse_position(position)

    async def read(self, limit: int) -> list[tuple[str, Event]]:
        events = await self._store.tail(self._after, limit)
        if events:
            self._after = events[-1].seq
        return [(str(event.seq), event) for event in events]


def open_cursor(store: Store, position: str) -> LogCursor:
    """Return a cursor that reads the events of a store's log after `position`; "0" is the beginning of the log.

    Raises `InvalidInput` if the text is not a position.
    """
    return store.open_cursor(position) if isinstance(store, CursorStore) else SequentialCursor(store, position)


def parse_position(text: str) -> int:
    """Return the event number that a position of a `SequentialCursor` stands for.

    Raises `InvalidInput` if the text is not a number. The error names the header `Last-Event-ID`, in which clients of
    the API send a position back.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidInput(
            "Last-Event-ID", f"{text!r:.40} is not a position in the log", "Send back an id of this stream"
        )
    return int(text)
