"""The broker port: how hints of work and events travel between processes. What must not be lost is in the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from msgspec import Struct

from mainspring.model.instant import Ms

#: Where messages end that nobody can read, or that came too often.
DEAD = "dlq"
#: Every event of every instance.
EVENTS = "events"
#: A topic, group or consumer name is no longer than this.
MAX_NAME = 200


class Limits(Struct, frozen=True, kw_only=True):
    """What a broker holds and how patient it is; durations in milliseconds."""

    #: So many messages a topic holds that a group reads; then `publish` waits for room.
    capacity: int = 100_000
    #: So many a topic holds that no group reads, the newest.
    kept: int = 10_000
    #: Delivered and neither acknowledged nor refused for so long, a message comes again, to any consumer of the group.
    redeliver_after: Ms = 60_000
    #: Delivered so often, a message goes to the dead letters instead of coming again.
    max_deliveries: int = 5
    #: So many dead letters are kept, the newest.
    dead: int = 10_000
    #: A longer body is refused, in characters.
    body: int = 64 * 1024


class Message(Struct, frozen=True, gc=False):
    """One delivery."""

    topic: str
    id: str
    body: str
    deliveries: int = 1


class Depth(Struct, frozen=True):
    """Messages that no consumer of the group was given yet, and those given and not acknowledged."""

    waiting: int
    unanswered: int = 0


class DeadLetter(Struct, frozen=True):
    """A message that went to the dead letters; `at` is when, by the broker's clock."""

    id: str
    topic: str
    body: str
    deliveries: int
    reason: str
    at: Ms


class Broker(Protocol):
    """Every verb raises `BrokerUnavailable` when the broker cannot be reached; the next call tries again."""

    @property
    def limits(self) -> Limits: ...

    async def open(self) -> None:
        """Reach the broker and check that it can be used; the other verbs do so by themselves."""
        ...

    async def close(self) -> None:
        """Let go; whoever consumes here comes to the end of its messages."""
        ...

    async def publish(self, topic: str, bodies: Sequence[str]) -> None:
        """Add messages in order; waits while the topic is full."""
        ...

    def consume(
        self, topic: str, *, group: str | None, consumer: str, limit: int = 100
    ) -> AsyncGenerator[list[Message], None]:
        """Messages as they come, at most `limit` at once; an empty list, first and now and then: the broker is there.

        In a group each message goes to one consumer, from the first message the topic holds on, until it is
        acknowledged. Without a group every consumer gets all that is published from now on, once.
        """
        ...

    async def ack(self, messages: Sequence[Message], *, group: str) -> None:
        """Done with: they do not come again."""
        ...

    async def nack(self, messages: Sequence[Message], *, group: str, delay: Ms = 0) -> None:
        """Not done: they come again after `delay`, or go to the dead letters when they came too often."""
        ...

    async def bury(self, messages: Sequence[Message], *, group: str, reason: str) -> None:
        """They never can be done: to the dead letters at once."""
        ...

    async def depth(self, topic: str, *, group: str) -> Depth:
        """How much a topic holds for a group."""
        ...

    async def audience(self, topic: str) -> bool:
        """True when anybody reads the topic: there is a group, or a consumer without one asked lately."""
        ...

    async def dead(self, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        """Dead letters, oldest first; `after` is the id of the last one of the page before."""
        ...

    async def replay(self, ids: Sequence[str]) -> int:
        """Publish dead letters again where they came from; how many there were."""
        ...

    async def discard(self, ids: Sequence[str]) -> int:
        """Remove dead letters; how many there were."""
        ...
