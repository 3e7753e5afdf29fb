"""The broker port: how hints of work and events travel between processes.

A broker may lose all it holds without harm: what must not be lost is in the store.
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
    """The sizes and delays of a broker; durations in milliseconds."""

    #: Messages that a topic with a group holds; `publish` waits while there are more.
    capacity: int = 100_000
    #: Messages that a topic without a group holds: the newest.
    kept: int = 10_000
    #: A delivered message that is neither acknowledged nor refused is delivered again after this time, to any consumer
    #: of the group.
    redeliver_after: Ms = 60_000
    #: A message that was delivered this often becomes a dead letter instead of being delivered again.
    max_deliveries: int = 5
    #: Dead letters that are kept: the newest.
    dead: int = 10_000
    #: The longest body, in characters; a longer one is refused.
    body: int = 64 * 1024


class Message(Struct, frozen=True, gc=False):
    """One delivery of a message to a consumer. `deliveries` counts this one and those before it."""

    topic: str
    id: str
    body: str
    deliveries: int = 1


class Depth(Struct, frozen=True):
    """What a topic holds for a group: messages not delivered yet, and messages delivered but not acknowledged."""

    waiting: int
    unanswered: int = 0


class DeadLetter(Struct, frozen=True):
    """A message that was given up, and why. `at` is the instant when that happened, by the broker's clock."""

    id: str
    topic: str
    body: str
    deliveries: int
    reason: str
    at: Ms


class Broker(Protocol):
    """Topics with at-least-once delivery to consumer groups.

    Every method raises `BrokerUnavailable` if the broker cannot be reached; the next call connects again.
    """

    @property
    def limits(self) -> BrokerLimits: ...

    async def open(self) -> None:
        """Connect and check that the broker can be used. Optional: the other methods connect by themselves."""
        ...

    async def close(self) -> None:
        """Close the connections. The iterators of this object's consumers end."""
        ...

    async def publish(self, topic: str, bodies: Sequence[str]) -> None:
        """Append messages to a topic in the given order. Waits while the topic is full."""
        ...

    def consume(
        self, topic: str, *, group: str | None, consumer: str, limit: int = 100
    ) -> AsyncGenerator[list[Message], None]:
        """Yield messages as they arrive, at most `limit` in a list.

        An empty list, first and then from time to time, shows that the broker can be reached.

        With a group, each message goes to one consumer of it, beginning with the oldest that the topic holds, until it
        is acknowledged. Without a group, each consumer receives all messages published from now on, once.
        """
        ...

    async def ack(self, messages: Sequence[Message], *, group: str) -> None:
        """Acknowledge messages: they are not delivered again."""
        ...

    async def nack(self, messages: Sequence[Message], *, group: str, delay: Ms = 0) -> None:
        """Refuse messages: they are delivered again after `delay`, or become dead letters after too many deliveries."""
        ...

    async def bury(self, messages: Sequence[Message], *, group: str, reason: str) -> None:
        """Turn messages that can never be processed into dead letters at once."""
        ...

    async def depth(self, topic: str, *, group: str) -> Depth:
        """Return how many messages a topic holds for a group."""
        ...

    async def has_readers(self, topic: str) -> bool:
        """Return True if the topic has a group, or a consumer without a group that asked recently."""
        ...

    async def dead_letters(self, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        """Return up to `limit` dead letters, oldest first, behind the one with the id `after`."""
        ...

    async def replay(self, ids: Sequence[str]) -> int:
        """Publish dead letters again to the topics that they came from. Return how many existed."""
        ...

    async def discard(self, ids: Sequence[str]) -> int:
        """Delete dead letters. Return how many existed."""
        ...
