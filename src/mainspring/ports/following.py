"""Following the log from a place: what comes after it, each event once, and the place after each.

A place is a text that may leave the process and come back later, to any instance on the same store.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from mainspring.model.errors import InvalidInput
from mainspring.model.events import Event
from mainspring.ports.store import Store


class Follower(Protocol):
    """Moves along the log."""

    async def steps(self, limit: int) -> list[tuple[str, Event]]:
        """New events, each with the place behind it; empty when there is nothing new."""
        ...


@runtime_checkable
class Follows(Protocol):
    """A store whose numbers may become visible out of order, and which knows how to follow them."""

    def follow(self, place: int | str = 0) -> Follower: ...


class InOrder:
    """For stores in which the order of numbers is the order of commits: a place is a number."""

    def __init__(self, store: Store, place: str) -> None:
        self._store = store
        self._after = number(place)

    async def steps(self, limit: int) -> list[tuple[str, Event]]:
        events = await self._store.tail(self._after, limit)
        if events:
            self._after = events[-1].seq
        return [(str(event.seq), event) for event in events]


def follower(store: Store, place: str) -> Follower:
    """One who goes on behind a place; InvalidInput when it is none."""
    return store.follow(place) if isinstance(store, Follows) else InOrder(store, place)


def number(text: str) -> int:
    """A number of the log."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidInput("Last-Event-ID", f"{text!r:.40} is not a place in the log", "Send back an id of this stream")
    return int(text)
