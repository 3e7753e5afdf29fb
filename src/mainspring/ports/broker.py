"""The broker port: hints about runs, and copies of events, sent between processes as messages.

A broker may lose every message: what must not be lost is in the store, and a lost hint costs latency only (ADR 16).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from msgspec import Struct

from mainspring.model.instant import Ms

#: The name under which a broker keeps dead letters: messages that no consumer can read, or that were delivered too
#: often. No topic may have this name.
DEAD_LETTER_TOPIC = "dlq"
#: The topic of the events of all instances.
EVENTS_TOPIC = "events"
#: The longest name of a topic, group or consumer, in characters.
MAX_BROKER_NAME_CHARS = 200


class BrokerLimits(Struct, frozen=True, kw_only=True):
    """The limits of a broker: how many messages it holds, and when it delivers again. Durations are milliseconds."""

    #: The most messages that a topic with a group holds; `publish` waits while it is full.
    capacity: int = 100_000
    #: The most messages that a topic without a group holds; new ones replace the oldest.
    kept: int = 10_000
    #: A delivered message that is neither acknowledged nor refused is delivered again after this time, to any consumer
    #: of the group.
    redeliver_after: Ms = 60_000
    #: A message that was delivered this often becomes a dead letter instead of being delivered again.
    max_deliveries: int = 5
    #: The most dead letters that are kept; new ones replace the oldest.
    dead: int = 10_000
    #: The longest body of a message, in characters; a longer body is refused.
    body: int = 64 * 1024


class Message(Struct, frozen=True, gc=False):
    """One delivery of a message to a consumer. `deliveries` counts this delivery and the earlier ones."""

    topic: str
    id: str
    body: str
    deliveries: int = 1


class Depth(Struct, frozen=True):
    """The number of messages that a topic holds for a group."""

    #: Messages that were not delivered yet.
    waiting: int
    #: Messages that were delivered but neither acknowledged nor turned into dead letters.
    unanswered: int = 0


class DeadLetter(Struct, frozen=True):
    """A message that is not delivered any more, and the reason. `at`: when it was given up, by the broker's clock."""

    #: An id of its own, not that of the message.
    id: str
    #: The topic that the message came from.
    topic: str
    body: str
    deliveries: int
    reason: str
    at: Ms


class Broker(Protocol):
    """Message topics with at-least-once delivery to groups of consumers.

    Every method raises `BrokerUnavailable` if the broker cannot be reached; the next call connects again.
    """

    @property
    def limits(self) -> BrokerLimits:
        """The limits of this broker, as its URL sets them."""
        ...

    async def open(self) -> None:
        """Connect and check that the broker can be used.

        A new object need not be opened: its other methods connect by themselves. After `close`, `open` must be called.
        """
        ...

    async def close(self) -> None:
        """Close the connections, and end the iterators that `consume` returned."""
        ...

    async def publish(self, topic: str, bodies: Sequence[str]) -> None:
        """Append a message for each body to a topic, in this order.

        A topic with a group has a limit: while it is full, wait. In a topic without a group, new messages replace the
        oldest.
        """
        ...

    def consume(
        self, topic: str, *, group: str | None, consumer: str, limit: int = 100
    ) -> AsyncGenerator[list[Message], None]:
        """Yield lists of up to `limit` messages of a topic as they arrive, until the broker is closed.

        With a group, each message goes to one consumer of the group, oldest first, and is delivered again until it is
        acknowledged or becomes a dead letter. Without a group, each consumer receives once every message that is
        published after this consumer got its first list. It misses messages that newer ones replaced before it read
        them. `consumer`: the name of this consumer in the group.

        The first list, and from time to time a later one, is empty: it shows that the broker can be reached.
        """
        ...

    async def ack(self, messages: Sequence[Message], *, group: str) -> None:
        """Acknowledge messages for a group: they are not delivered to it again."""
        ...

    async def nack(self, messages: Sequence[Message], *, group: str, delay: Ms = 0) -> None:
        """Refuse messages for a group: each is delivered to it again after `delay` milliseconds.

        On Redis, it is delivered after `redeliver_after` at the latest. A message that was delivered `max_deliveries`
        times becomes a dead letter instead.
        """
        ...

    async def bury(self, messages: Sequence[Message], *, group: str, reason: str) -> None:
        """Turn messages of a group into dead letters at once, because they can never be processed."""
        ...

    async def depth(self, topic: str, *, group: str) -> Depth:
        """Count the messages that a topic holds for a group."""
        ...

    async def has_readers(self, topic: str) -> bool:
        """Return True if the topic may have a reader.

        Publishers ask, so as not to send events that no consumer reads. True if the topic has a group, or if a consumer
        without a group reads it or lately did (Redis: up to 15 s ago). With the Redis option `events=always`, also True
        for `EVENTS_TOPIC` without readers.
        """
        ...

    async def dead_letters(self, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        """Return up to `limit` dead letters, oldest first, after the dead letter with the id `after` if it is given."""
        ...

    async def replay(self, ids: Sequence[str]) -> int:
        """Publish dead letters, given by id, again to their topics and delete them. Return how many of them existed."""
        ...

    async def discard(self, ids: Sequence[str]) -> int:
        """Delete dead letters, given by id. Return how many of them existed."""
        ...
