"""The memory broker: bounded queues inside one process. The other brokers must behave like it."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from mainspring.aio.wakeup import Wakeup
from mainspring.backends.broker_checks import check_bodies, check_limit, check_name, check_topic
from mainspring.model.errors import BrokerUnavailable
from mainspring.model.instant import Ms
from mainspring.model.plural import plural
from mainspring.ports.broker import BrokerLimits, DeadLetter, Depth, Message
from mainspring.ports.clock import Clock, SystemClock

#: A consumer without messages yields an empty batch after this time, so that its caller can do other work. A publisher
#: that waits for room in a full topic tries again after this time.
IDLE_SECONDS = 1.0
_CLOSED = "this broker was closed"


class _Pending(Struct):
    """A message that was delivered to a consumer and is not acknowledged yet. It is redelivered at `due`."""

    body: str
    deliveries: int
    #: In monotonic seconds.
    due: float


class _Group:
    """The messages of one group: `fresh` are not delivered yet, `pending` are delivered and not acknowledged.

    `held`: number → message, for the messages that the topic holds. They are the group's first messages.
    """

    def __init__(self, held: dict[str, _Held]) -> None:
        self.fresh: deque[tuple[str, str]] = deque((number, one.body) for number, one in held.items())
        self.pending: dict[str, _Pending] = {}
        #: A heap of (due, message number). An entry is stale if the message is not pending or has another `due`.
        self.redeliveries: list[tuple[float, str]] = []

    def redeliver_at(self, number: str, due: float) -> None:
        """Set the next delivery of the pending message with this number to `due`, in monotonic seconds."""
        self.pending[number].due = due
        heappush(self.redeliveries, (due, number))

    def pop_due(self, now: float) -> str | None:
        """Return the number of a pending message whose redelivery is due at `now`, None if there is no such message.

        `now` is in monotonic seconds. The message stays in `pending`, but is off the heap of redeliveries.
        """
        while self.redeliveries and self.redeliveries[0][0] <= now:
            due, number = heappop(self.redeliveries)
            one = self.pending.get(number)
            if one is not None and one.due == due:  # else it was acknowledged, or rescheduled since
                return number
        return None


class _Held(Struct):
    """A message of a topic. `groups`: how many groups have neither acknowledged it nor made it a dead letter.

    When this number falls to 0, the message is removed.
    """

    body: str
    groups: int


class _Topic:
    """A topic's messages, its groups, and the queues of its followers, which are consumers without a group."""

    def __init__(self) -> None:
        self.held: dict[str, _Held] = {}
        self.groups: dict[str, _Group] = {}
        self.followers: dict[str, deque[Message]] = {}
        self.wakeup = Wakeup()


class Hub:
    """The topics and dead letters that all brokers with one name share.

    Any thread may call the methods; each holds the lock briefly.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}
        self._dead: dict[str, DeadLetter] = {}
        self._numbers = itertools.count(1)

    def topic(self, name: str) -> _Topic:
        """Return the topic with this name; create it if it is new."""
        with self.lock:
            return self._topics.setdefault(name, _Topic())

    def put(self, name: str, bodies: Sequence[str], limits: BrokerLimits) -> int:
        """Add messages with these bodies to the topic `name` while it has room; return how many were added.

        A topic that no group reads is never full: it forgets its oldest messages. Waiting consumers are woken.
        """
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
        if added:
            topic.wakeup.notify()
        return added

    def _add(self, topic: _Topic, name: str, body: str) -> None:
        """Add a message under a new number to the topic, its groups and its followers; `name`: the topic's.

        The caller holds the lock.
        """
        number = f"{next(self._numbers):016d}"
        topic.held[number] = _Held(body, len(topic.groups))
        for group in topic.groups.values():
            group.fresh.append((number, body))
        for queue in topic.followers.values():
            queue.append(Message(name, number, body))

    def join(self, name: str, group: str) -> None:
        """Create the group of the topic `name`, if it is new. It begins with the messages that the topic holds."""
        topic = self.topic(name)
        with self.lock:
            if group not in topic.groups:
                topic.groups[group] = _Group(topic.held)
                for one in topic.held.values():
                    one.groups += 1

    def deliver(
        self, name: str, group: str, limit: int, now: float, wall: Ms, limits: BrokerLimits
    ) -> tuple[list[Message], float | None]:
        """Return (up to `limit` messages for one consumer of the group, when the next redelivery is due).

        Redeliveries come first; a message that was delivered as often as `limits` allow becomes a dead letter instead.
        The second value is in monotonic seconds like `now`, or None if no message is waiting for its acknowledgement.
        It may be too early, because the time of an acknowledged message is forgotten late. `name`: the topic's. `wall`:
        the present time, for dead letters.
        """
        topic = self.topic(name)
        found: list[Message] = []
        with self.lock:
            mine = topic.groups[group]
            while len(found) < limit and (number := mine.pop_due(now)) is not None:
                one = mine.pending[number]
                if one.deliveries >= limits.max_deliveries:
                    self._bury(name, mine, number, f"delivered {plural(one.deliveries, 'time')}", wall, limits)
                    continue
                one.deliveries += 1
                mine.redeliver_at(number, now + limits.redeliver_after / 1000)
                found.append(Message(name, number, one.body, one.deliveries))
            while len(found) < limit and mine.fresh:
                number, body = mine.fresh.popleft()
                mine.pending[number] = _Pending(body, 1, 0.0)
                mine.redeliver_at(number, now + limits.redeliver_after / 1000)
                found.append(Message(name, number, body))
            return found, mine.redeliveries[0][0] if mine.redeliveries else None

    def acknowledge(self, name: str, group: str, ids: Sequence[str]) -> None:
        """Remove delivered messages from the group, and from the topic if no other group needs them.

        `name`: the topic's. `ids`: of the messages; a message that is not pending in the group stays. Publishers that
        wait for room are woken.
        """
        topic = self.topic(name)
        with self.lock:
            mine = topic.groups.get(group)
            for number in ids:
                if mine is not None:
                    self._settle(topic, mine, number)
        topic.wakeup.notify()

    def _settle(self, topic: _Topic, group: _Group, number: str) -> None:
        """Remove a pending message from the group, and from the topic if no other group needs it.

        Do nothing if the message is not pending in the group. The caller holds the lock.
        """
        if group.pending.pop(number, None) is None:
            return
        held = topic.held.get(number)
        if held is not None:
            held.groups -= 1
            if held.groups <= 0:
                del topic.held[number]

    def refuse(self, message: Message, group: str, due: float, wall: Ms, limits: BrokerLimits) -> None:
        """Let a message be redelivered to the group at `due` (monotonic seconds).

        If it was delivered as often as `limits` allow, make it a dead letter instead. Do nothing if the group has
        acknowledged the message or made it a dead letter already. `wall`: the present time, for a dead letter.
        """
        topic = self.topic(message.topic)
        with self.lock:
            mine = topic.groups.get(group)
            if mine is None or message.id not in mine.pending:
                return
            deliveries = mine.pending[message.id].deliveries
            if deliveries >= limits.max_deliveries:
                self._bury(message.topic, mine, message.id, f"delivered {plural(deliveries, 'time')}", wall, limits)
            else:
                mine.redeliver_at(message.id, due)
        topic.wakeup.notify()

    def bury(self, message: Message, group: str, reason: str, wall: Ms, limits: BrokerLimits) -> None:
        """Make a message of the group a dead letter, unless the group has acknowledged it or made it one already.

        `reason` and `wall`, the present time, are kept with the dead letter. `limits`: the most dead letters to keep.
        """
        topic = self.topic(message.topic)
        with self.lock:
            mine = topic.groups.get(group)
            if mine is not None and message.id in mine.pending:
                self._bury(message.topic, mine, message.id, reason, wall, limits)
        topic.wakeup.notify()

    def _bury(self, name: str, group: _Group, number: str, reason: str, wall: Ms, limits: BrokerLimits) -> None:
        """Make a pending message of the group a dead letter; if `limits` allow no more, remove the oldest dead letter.

        `name`: the topic's. `number`: the message's. `wall`: the present time, for the dead letter. The caller holds
        the lock.
        """
        one = group.pending[number]
        dead = f"{next(self._numbers):016d}"
        self._dead[dead] = DeadLetter(dead, name, one.body, one.deliveries, reason, wall)
        if len(self._dead) > limits.dead:
            del self._dead[next(iter(self._dead))]
        self._settle(self._topics[name], group, number)

    def depth(self, name: str, group: str) -> Depth:
        """Return how many messages the group has: not delivered yet, and delivered but not acknowledged.

        If there is no such group, return how many messages the topic `name` has.
        """
        topic = self.topic(name)
        with self.lock:
            mine = topic.groups.get(group)
            return Depth(len(topic.held)) if mine is None else Depth(len(mine.fresh), len(mine.pending))

    def follow(self, name: str, consumer: str, limits: BrokerLimits) -> deque[Message]:
        """Return the queue of the follower `consumer` of the topic `name`; create the queue if the follower is new.

        A follower gets every new message. If it reads too slowly, the oldest messages in its queue are lost.
        """
        topic = self.topic(name)
        with self.lock:
            return topic.followers.setdefault(consumer, deque(maxlen=limits.kept))

    def drain(self, queue: deque[Message], limit: int) -> list[Message]:
        """Remove up to `limit` messages from the head of a follower's queue, and return them."""
        with self.lock:
            return [queue.popleft() for _ in range(min(limit, len(queue)))]

    def unfollow(self, name: str, consumer: str) -> None:
        """Remove the queue of the follower `consumer` from the topic `name`."""
        topic = self.topic(name)
        with self.lock:
            topic.followers.pop(consumer, None)

    def dead_letters(self, limit: int, after: str) -> list[DeadLetter]:
        """Return up to `limit` dead letters with an id above `after`, in the order of their ids."""
        with self.lock:
            return [letter for number, letter in self._dead.items() if number > after][:limit]

    def remove_dead_letters(self, ids: Sequence[str]) -> list[DeadLetter]:
        """Remove the dead letters with these ids; return those that existed."""
        with self.lock:
            return [self._dead.pop(number) for number in dict.fromkeys(ids) if number in self._dead]


#: Name → the hub of the brokers with this name. A hub is forgotten with the last broker that uses it.
_hubs: weakref.WeakValueDictionary[str, Hub] = weakref.WeakValueDictionary()
_hubs_lock = threading.Lock()


def hub_of(name: str) -> Hub:
    """Return the process's hub of this name; for an empty name, a new hub that is not shared."""
    if not name:
        return Hub()
    with _hubs_lock:
        found = _hubs.get(name)
        if found is None:
            found = _hubs[name] = Hub()
        return found


class MemoryBroker:
    """A broker whose messages are lost with the process. A lost message costs latency only: the store has all runs.

    Brokers of one process with one `name` share their messages; a broker without a name has messages of its own.
    `clock`: None means the system's clock. `limits`: None means the default limits.
    """

    def __init__(self, name: str = "", clock: Clock | None = None, limits: BrokerLimits | None = None) -> None:
        self._hub = hub_of(name)
        self._clock = clock or SystemClock()
        self.limits = limits or BrokerLimits()
        self._closed = False
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        for topic in list(self._hub._topics.values()):
            topic.wakeup.notify()

    async def publish(self, topic: str, bodies: Sequence[str]) -> None:
        check_topic(topic)
        check_bodies(bodies, self.limits)
        wakeup, left = self._hub.topic(topic).wakeup, list(bodies)
        while left:
            self._check_open()
            seen = wakeup.latest
            added = self._hub.put(topic, left, self.limits)
            del left[:added]
            if not added:
                await wakeup.wait(IDLE_SECONDS, seen)

    async def consume(
        self, topic: str, *, group: str | None, consumer: str, limit: int = 100
    ) -> AsyncGenerator[list[Message], None]:
        check_topic(topic)
        check_name(consumer, "consumer")
        check_limit(limit)
        self._check_open()
        messages = (
            self._consume_all(topic, consumer, limit) if group is None else self._consume_group(topic, group, limit)
        )
        async with contextlib.aclosing(messages):
            async for batch in messages:
                yield batch

    async def _consume_group(self, topic: str, group: str, limit: int) -> AsyncGenerator[list[Message], None]:
        """Join the group, then yield batches of its messages for one consumer, until the broker is closed.

        An empty batch is yielded first, and whenever no message came for `IDLE_SECONDS` or until the next redelivery
        was due.
        """
        check_name(group, "group")
        self._hub.join(topic, group)
        yield []
        wakeup = self._hub.topic(topic).wakeup
        while not self._closed:
            seen, now = wakeup.latest, self._clock.monotonic()
            batch, due = self._hub.deliver(topic, group, limit, now, self._clock.now(), self.limits)
            if batch:
                yield batch
            elif not await wakeup.wait(IDLE_SECONDS if due is None else min(IDLE_SECONDS, max(0.0, due - now)), seen):
                yield []

    async def _consume_all(self, topic: str, consumer: str, limit: int) -> AsyncGenerator[list[Message], None]:
        """Follow the topic: yield every new message, in batches, until the broker is closed.

        An empty batch is yielded first, and whenever no message came for `IDLE_SECONDS`. Each call makes a follower of
        its own, so two calls with one name of a consumer both get every message.
        """
        name = f"{consumer}:{next(self._numbers)}:{id(self)}"
        queue = self._hub.follow(topic, name, self.limits)
        wakeup = self._hub.topic(topic).wakeup
        try:
            yield []
            while not self._closed:
                seen = wakeup.latest
                batch = self._hub.drain(queue, limit)
                if batch:
                    yield batch
                elif not await wakeup.wait(IDLE_SECONDS, seen):
                    yield []
        finally:
            self._hub.unfollow(topic, name)

    async def ack(self, messages: Sequence[Message], *, group: str) -> None:
        self._check_open()
        by_topic: dict[str, list[str]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message.id)
        for topic, ids in by_topic.items():
            self._hub.acknowledge(topic, group, ids)

    async def nack(self, messages: Sequence[Message], *, group: str, delay: Ms = 0) -> None:
        self._check_open()
        due = self._clock.monotonic() + delay / 1000
        for message in messages:
            self._hub.refuse(message, group, due, self._clock.now(), self.limits)

    async def bury(self, messages: Sequence[Message], *, group: str, reason: str) -> None:
        self._check_open()
        for message in messages:
            self._hub.bury(message, group, reason, self._clock.now(), self.limits)

    async def depth(self, topic: str, *, group: str) -> Depth:
        self._check_open()
        return self._hub.depth(topic, group)

    async def has_readers(self, topic: str) -> bool:
        self._check_open()
        found = self._hub.topic(topic)
        return bool(found.groups or found.followers)

    async def dead_letters(self, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        self._check_open()
        return self._hub.dead_letters(limit, after or "")

    async def replay(self, ids: Sequence[str]) -> int:
        self._check_open()
        letters = self._hub.remove_dead_letters(ids)
        for letter in letters:
            await self.publish(letter.topic, [letter.body])
        return len(letters)

    async def discard(self, ids: Sequence[str]) -> int:
        self._check_open()
        return len(self._hub.remove_dead_letters(ids))

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerUnavailable(_CLOSED)
