"""The memory broker: bounded queues inside one process, shared by name; the reference for the others."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from mainspring.brokers.bell import Bell
from mainspring.brokers.checks import check_bodies, check_limit, check_topic, check_word
from mainspring.model.errors import BrokerUnavailable
from mainspring.model.instant import Ms
from mainspring.ports.broker import DeadLetter, Depth, Limits, Message
from mainspring.ports.clock import Clock, SystemClock

#: A consumer that hears nothing says so every so many seconds.
IDLE = 1.0
CLOSED = "this broker was closed"


class _Pending(Struct):
    """A message a consumer was given; at `due`, by monotonic time, it comes again."""

    body: str
    deliveries: int
    due: float


class _Group:
    """What one group has still to be given, and what it was given and has not acknowledged."""

    def __init__(self, held: dict[str, _Held]) -> None:
        self.fresh: deque[tuple[str, str]] = deque((number, one.body) for number, one in held.items())
        self.pending: dict[str, _Pending] = {}
        self.again: list[tuple[float, str]] = []

    def put_off(self, number: str, due: float) -> None:
        self.pending[number].due = due
        heappush(self.again, (due, number))

    def due(self, now: float) -> str | None:
        """A message that comes again."""
        while self.again and self.again[0][0] <= now:
            due, number = heappop(self.again)
            one = self.pending.get(number)
            if one is not None and one.due == due:  # else it was acknowledged, or put off since
                return number
        return None


class _Held(Struct):
    """A message, and how many groups have yet to be done with it."""

    body: str
    groups: int


class _Topic:
    def __init__(self) -> None:
        self.held: dict[str, _Held] = {}
        self.groups: dict[str, _Group] = {}
        self.followers: dict[str, deque[Message]] = {}
        self.bell = Bell()


class Hub:
    """The queues that brokers of one name share; its verbs are short, and one thread at a time does one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}
        self._dead: dict[str, DeadLetter] = {}
        self._numbers = itertools.count(1)

    def topic(self, name: str) -> _Topic:
        with self.lock:
            return self._topics.setdefault(name, _Topic())

    def put(self, name: str, bodies: Sequence[str], limits: Limits) -> int:
        """Add what there is room for; how many."""
        topic = self.topic(name)
        with self.lock:
            added = 0
            for body in bodies:
                if topic.groups and len(topic.held) >= limits.capacity:
                    break
                self._add(topic, name, body)
                added += 1
            while not topic.groups and len(topic.held) > limits.kept:
                del topic.held[next(iter(topic.held))]
        topic.bell.ring()
        return added

    def _add(self, topic: _Topic, name: str, body: str) -> None:
        number = f"{next(self._numbers):016d}"
        topic.held[number] = _Held(body, len(topic.groups))
        for group in topic.groups.values():
            group.fresh.append((number, body))
        for queue in topic.followers.values():
            queue.append(Message(name, number, body))

    def join(self, name: str, group: str) -> None:
        """Make the group, if it is new: it begins with what the topic holds."""
        topic = self.topic(name)
        with self.lock:
            if group not in topic.groups:
                topic.groups[group] = _Group(topic.held)
                for one in topic.held.values():
                    one.groups += 1

    def take(
        self, name: str, group: str, limit: int, now: float, wall: Ms, limits: Limits
    ) -> tuple[list[Message], float | None]:
        """Messages for one consumer, first those that come again; and when the next does."""
        topic = self.topic(name)
        found: list[Message] = []
        with self.lock:
            mine = topic.groups[group]
            while len(found) < limit and (number := mine.due(now)) is not None:
                one = mine.pending[number]
                if one.deliveries >= limits.max_deliveries:
                    self._bury(name, mine, number, f"delivered {one.deliveries} times", wall, limits)
                    continue
                one.deliveries += 1
                mine.put_off(number, now + limits.redeliver_after / 1000)
                found.append(Message(name, number, one.body, one.deliveries))
            while len(found) < limit and mine.fresh:
                number, body = mine.fresh.popleft()
                mine.pending[number] = _Pending(body, 1, 0.0)
                mine.put_off(number, now + limits.redeliver_after / 1000)
                found.append(Message(name, number, body))
            return found, mine.again[0][0] if mine.again else None

    def done(self, name: str, group: str, ids: Sequence[str]) -> None:
        topic = self.topic(name)
        with self.lock:
            mine = topic.groups.get(group)
            for number in ids:
                if mine is not None:
                    self._done(topic, mine, number)
        topic.bell.ring()

    def _done(self, topic: _Topic, group: _Group, number: str) -> None:
        if group.pending.pop(number, None) is None:
            return
        held = topic.held.get(number)
        if held is not None:
            held.groups -= 1
            if held.groups <= 0:
                del topic.held[number]

    def put_back(self, message: Message, group: str, due: float, wall: Ms, limits: Limits) -> None:
        topic = self.topic(message.topic)
        with self.lock:
            mine = topic.groups.get(group)
            if mine is None or message.id not in mine.pending:
                return
            deliveries = mine.pending[message.id].deliveries
            if deliveries >= limits.max_deliveries:
                self._bury(message.topic, mine, message.id, f"delivered {deliveries} times", wall, limits)
            else:
                mine.put_off(message.id, due)
        topic.bell.ring()

    def bury(self, message: Message, group: str, reason: str, wall: Ms, limits: Limits) -> None:
        topic = self.topic(message.topic)
        with self.lock:
            mine = topic.groups.get(group)
            if mine is not None and message.id in mine.pending:
                self._bury(message.topic, mine, message.id, reason, wall, limits)
        topic.bell.ring()

    def _bury(self, name: str, group: _Group, number: str, reason: str, wall: Ms, limits: Limits) -> None:
        one = group.pending[number]
        dead = f"{next(self._numbers):016d}"
        self._dead[dead] = DeadLetter(dead, name, one.body, one.deliveries, reason, wall)
        if len(self._dead) > limits.dead:
            del self._dead[next(iter(self._dead))]
        self._done(self._topics[name], group, number)

    def depth(self, name: str, group: str) -> Depth:
        topic = self.topic(name)
        with self.lock:
            mine = topic.groups.get(group)
            return Depth(len(topic.held)) if mine is None else Depth(len(mine.fresh), len(mine.pending))

    def follow(self, name: str, consumer: str, limits: Limits) -> deque[Message]:
        """Messages for one who wants all; who is too slow loses the oldest."""
        topic = self.topic(name)
        with self.lock:
            return topic.followers.setdefault(consumer, deque(maxlen=limits.kept))

    def drain(self, queue: deque[Message], limit: int) -> list[Message]:
        with self.lock:
            return [queue.popleft() for _ in range(min(limit, len(queue)))]

    def unfollow(self, name: str, consumer: str) -> None:
        topic = self.topic(name)
        with self.lock:
            topic.followers.pop(consumer, None)

    def letters(self, limit: int, after: str) -> list[DeadLetter]:
        with self.lock:
            return [letter for number, letter in self._dead.items() if number > after][:limit]

    def remove(self, ids: Sequence[str]) -> list[DeadLetter]:
        with self.lock:
            return [self._dead.pop(number) for number in dict.fromkeys(ids) if number in self._dead]


#: Two apps of one process that name the same broker must meet somewhere; it is gone with the last of them.
_hubs: weakref.WeakValueDictionary[str, Hub] = weakref.WeakValueDictionary()
_naming = threading.Lock()


def hub(name: str) -> Hub:
    """The queues of this name in this process; without a name nobody else has them."""
    if not name:
        return Hub()
    with _naming:
        found = _hubs.get(name)
        if found is None:
            found = _hubs[name] = Hub()
        return found


class MemoryBroker:
    """Nothing outlives the process, and nothing has to: the store has everything."""

    def __init__(self, name: str = "", clock: Clock | None = None, limits: Limits | None = None) -> None:
        self._hub = hub(name)
        self._clock = clock or SystemClock()
        self.limits = limits or Limits()
        self._closed = False
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        for topic in list(self._hub._topics.values()):
            topic.bell.ring()

    async def publish(self, topic: str, bodies: Sequence[str]) -> None:
        check_topic(topic)
        check_bodies(bodies, self.limits)
        bell, left = self._hub.topic(topic).bell, list(bodies)
        while left:
            self._check_open()
            rings = bell.rings
            del left[: self._hub.put(topic, left, self.limits)]
            if left and bell.rings == rings + 1:  # our own
                await bell.wait(rings + 1, IDLE)

    async def consume(
        self, topic: str, *, group: str | None, consumer: str, limit: int = 100
    ) -> AsyncGenerator[list[Message], None]:
        check_topic(topic)
        check_word(consumer, "consumer")
        check_limit(limit)
        self._check_open()
        messages = self._follow(topic, consumer, limit) if group is None else self._share(topic, group, limit)
        async with contextlib.aclosing(messages):
            async for batch in messages:
                yield batch

    async def _share(self, topic: str, group: str, limit: int) -> AsyncGenerator[list[Message], None]:
        check_word(group, "group")
        self._hub.join(topic, group)
        yield []
        bell = self._hub.topic(topic).bell
        while not self._closed:
            rings, now = bell.rings, self._clock.monotonic()
            batch, due = self._hub.take(topic, group, limit, now, self._clock.now(), self.limits)
            if batch:
                yield batch
            elif not await bell.wait(rings, IDLE if due is None else min(IDLE, max(0.0, due - now))):
                yield []

    async def _follow(self, topic: str, consumer: str, limit: int) -> AsyncGenerator[list[Message], None]:
        name = f"{consumer}:{next(self._numbers)}:{id(self)}"
        queue = self._hub.follow(topic, name, self.limits)
        bell = self._hub.topic(topic).bell
        try:
            yield []
            while not self._closed:
                rings = bell.rings
                batch = self._hub.drain(queue, limit)
                if batch:
                    yield batch
                elif not await bell.wait(rings, IDLE):
                    yield []
        finally:
            self._hub.unfollow(topic, name)

    async def ack(self, messages: Sequence[Message], *, group: str) -> None:
        self._check_open()
        by_topic: dict[str, list[str]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message.id)
        for topic, ids in by_topic.items():
            self._hub.done(topic, group, ids)

    async def nack(self, messages: Sequence[Message], *, group: str, delay: Ms = 0) -> None:
        self._check_open()
        due = self._clock.monotonic() + delay / 1000
        for message in messages:
            self._hub.put_back(message, group, due, self._clock.now(), self.limits)

    async def bury(self, messages: Sequence[Message], *, group: str, reason: str) -> None:
        self._check_open()
        for message in messages:
            self._hub.bury(message, group, reason, self._clock.now(), self.limits)

    async def depth(self, topic: str, *, group: str) -> Depth:
        self._check_open()
        return self._hub.depth(topic, group)

    async def audience(self, topic: str) -> bool:
        self._check_open()
        found = self._hub.topic(topic)
        return bool(found.groups or found.followers)

    async def dead(self, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        self._check_open()
        return self._hub.letters(limit, after or "")

    async def replay(self, ids: Sequence[str]) -> int:
        self._check_open()
        letters = self._hub.remove(ids)
        for letter in letters:
            await self.publish(letter.topic, [letter.body])
        return len(letters)

    async def discard(self, ids: Sequence[str]) -> int:
        self._check_open()
        return len(self._hub.remove(ids))

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerUnavailable(CLOSED)
