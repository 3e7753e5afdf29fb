"""A broker that loses, repeats and reorders some of its messages: none of this may harm a run."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence

from mainspring.model.instant import Ms
from mainspring.ports.broker import Broker, BrokerLimits, DeadLetter, Depth, Message


class FaultyBroker:
    """Wraps a broker and loses, doubles and reorders some of the published messages; it also loses acknowledgements.

    `dropped`, `doubled` and `reordered` are the fractions of messages with that fault; `dropped` is also the fraction
    of acknowledgements that are lost.
    """

    def __init__(
        self,
        broker: Broker,
        rng: random.Random,
        *,
        dropped: float = 0.01,
        doubled: float = 0.01,
        reordered: float = 0.01,
    ) -> None:
        self._broker = broker
        self._rng = rng
        self._dropped = dropped
        self._doubled = doubled
        self._reordered = reordered
        self._late: list[tuple[str, str]] = []
        #: Number of messages lost, repeated and reordered until now.
        self.lost = self.repeated = self.shuffled = 0

    @property
    def limits(self) -> BrokerLimits:
        return self._broker.limits

    async def open(self) -> None:
        await self._broker.open()

    async def close(self) -> None:
        await self._broker.close()

    async def publish(self, topic: str, bodies: Sequence[str]) -> None:
        sent: list[str] = []
        for body in bodies:
            if self._rng.random() < self._dropped:
                self.lost += 1
                continue
            if self._rng.random() < self._doubled:
                self.repeated += 1
                sent.append(body)
            if self._rng.random() < self._reordered:  # keep the message and publish it after later ones
                self.shuffled += 1
                self._late.append((topic, body))
                continue
            sent.append(body)
        late, self._late = (
            [body for where, body in self._late if where == topic],
            [one for one in self._late if one[0] != topic],
        )
        self._rng.shuffle(late)
        await self._broker.publish(topic, sent)
        if late and self._rng.random() < 0.5:
            self._late += [(topic, body) for body in late]
        else:
            await self._broker.publish(topic, late)

    def consume(
        self, topic: str, *, group: str | None, consumer: str, limit: int = 100
    ) -> AsyncGenerator[list[Message], None]:
        return self._broker.consume(topic, group=group, consumer=consumer, limit=limit)

    async def ack(self, messages: Sequence[Message], *, group: str) -> None:
        kept = [message for message in messages if self._rng.random() >= self._dropped]
        await self._broker.ack(kept, group=group)

    async def nack(self, messages: Sequence[Message], *, group: str, delay: Ms = 0) -> None:
        await self._broker.nack(messages, group=group, delay=delay)

    async def bury(self, messages: Sequence[Message], *, group: str, reason: str) -> None:
        await self._broker.bury(messages, group=group, reason=reason)

    async def depth(self, topic: str, *, group: str) -> Depth:
        return await self._broker.depth(topic, group=group)

    async def has_readers(self, topic: str) -> bool:
        return await self._broker.has_readers(topic)

    async def dead_letters(self, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        return await self._broker.dead_letters(limit, after)

    async def replay(self, ids: Sequence[str]) -> int:
        return await self._broker.replay(ids)

    async def discard(self, ids: Sequence[str]) -> int:
        return await self._broker.discard(ids)
