"""The broker on Redis Streams: one stream for each topic, consumer groups, one call for each batch.

A message that every group has acknowledged is deleted. So the length of a stream with groups is the number of messages
that are still to be handled. No script touches more than one key, because the streams of two topics may be on different
nodes of a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Any, TypeVar

import msgspec

from mainspring.backends.broker_checks import check_bodies, check_limit, check_name, check_topic
from mainspring.backends.redis.broker_client import BrokerClient, TopicScript, to_broker_error
from mainspring.backends.redis.errors import DRIVER_ERRORS
from mainspring.model.errors import BrokerUnavailable, InvalidInput
from mainspring.model.instant import Ms
from mainspring.model.plural import plural
from mainspring.ports.broker import DEAD_LETTER_TOPIC, EVENTS_TOPIC, BrokerLimits, DeadLetter, Depth, Message

T = TypeVar("T")
_pack = msgspec.msgpack.Encoder().encode

#: How long a read waits for messages before it returns none. Its return tells the consumer that the broker answers.
READ_BLOCK_MS = 1_000
#: Longest interval between two searches for messages that were not acknowledged in time.
MAX_RECLAIM_SECONDS = 1.0
#: A consumer without a group sets a key that expires after this time, so that publishers know of it.
READER_TTL_SECONDS = 15
#: A consumer that has read nothing for this time (a day) and holds no message is removed from its group.
ABANDONED_CONSUMER_MS = 86_400_000
#: The largest number of messages in one call: Lua's unpack() takes some thousand values at most.
MAX_MESSAGES_PER_CALL = 1_000
#: Pause before the next try to publish to a full topic.
FULL_TOPIC_RETRY_SECONDS = 0.05
#: Arguments of bytes.decode(): entries that other programs added need not be UTF-8.
_LENIENT = ("utf-8", "backslashreplace")
#: The form of the id of an entry in a stream.
_ID = re.compile(r"\d{1,18}-\d{1,18}")
DEFAULT_PREFIX = "mainspring"
DEFAULT_STREAM = "scheduler-events"

#: Adds messages to a topic. KEYS[1]: stream. ARGV: capacity, number of messages to keep if the topic has no group,
#: bodies (as MessagePack: one argument is packed much faster than a thousand). Returns how many messages were added: a
#: topic with a consumer group takes messages up to its capacity.
_PUBLISH = TopicScript("""
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
local bodies = cmsgpack.unpack(ARGV[3])
local count = #bodies
if not groups.err and #groups > 0 then
  count = math.min(count, tonumber(ARGV[1]) - redis.call('XLEN', KEYS[1]))
  for i = 1, count do redis.call('XADD', KEYS[1], '*', 'body', bodies[i]) end
else
  for i = 1, count do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'body', bodies[i]) end
end
return math.max(count, 0)
""")
#: Acknowledges messages, and deletes those that all groups have acknowledged. KEYS[1]: stream. ARGV: group, ids of the
#: messages with spaces between them. Returns how many messages were acknowledged.
_ACK = TopicScript("""
local ids = {}
for id in string.gmatch(ARGV[2], '%S+') do ids[#ids + 1] = id end
local acked = redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then return acked end
if #groups == 1 then
  redis.call('XDEL', KEYS[1], unpack(ids))
  return acked
end
local function number(id)
  local ms, seq = string.match(id, '(%d+)-(%d+)')
  return tonumber(ms), tonumber(seq)
end
for _, id in ipairs(ids) do
  local ms, seq = number(id)
  local done = true
  for _, group in ipairs(groups) do
    local facts = {}
    for i = 1, #group, 2 do facts[group[i]] = group[i + 1] end
    local last_ms, last_seq = number(facts['last-delivered-id'])
    if last_ms < ms or (last_ms == ms and last_seq < seq)
        or #redis.call('XPENDING', KEYS[1], facts['name'], id, id, 1) > 0 then
      done = false
    end
  end
  if done then redis.call('XDEL', KEYS[1], id) end
end
return acked
""")
#: Delivers messages again that were not acknowledged in time. KEYS[1]: stream. ARGV: group, consumer, how many
#: milliseconds ago the last delivery must lie, limit. Returns {id, body, number of deliveries} of each message.
_RECLAIM = TopicScript("""
local found = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], '0-0', 'COUNT', ARGV[4])
local answer = {}
for _, entry in ipairs(found[2]) do
  if entry and entry[2] then
    local pending = redis.call('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1)
    local body = ''
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'body' then body = entry[2][i + 1] end
    end
    answer[#answer + 1] = {entry[1], body, pending[1] and pending[1][4] or 1}
  end
end
return answer
""")
#: Lets messages count as delivered ARGV[2] milliseconds ago, so that they are delivered again when the rest of the time
#: for their acknowledgement has passed. KEYS[1]: stream. ARGV: group, these milliseconds, ids of the messages.
_NACK = TopicScript("""
for i = 3, #ARGV do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)
  if pending[1] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], pending[1][2], 0, ARGV[i], 'IDLE', ARGV[2],
      'RETRYCOUNT', pending[1][4], 'JUSTID')
  end
end
return 0
""")


class RedisStreams:
    """Broker whose topics are streams `<prefix>:<topic>`; events go to a stream that other programs may read.

    `stream`: the key of the stream of events. None means `DEFAULT_STREAM`, with the prefix before it unless this is
    `DEFAULT_PREFIX`. `events_always`: publish events even if no consumer of them is known. `limits`: None means the
    default limits.
    """

    def __init__(
        self,
        client: BrokerClient,
        *,
        prefix: str = DEFAULT_PREFIX,
        stream: str | None = None,
        events_always: bool = False,
        limits: BrokerLimits | None = None,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._stream = stream or (DEFAULT_STREAM if prefix == DEFAULT_PREFIX else f"{prefix}:{DEFAULT_STREAM}")
        self.limits = limits or BrokerLimits()
        #: Why this setting exists: another program that reads events by plain XREAD leaves no trace in Redis.
        self._events_always = events_always
        self._closed = False

    def key(self, topic: str) -> str:
        """Return the key of a topic's stream."""
        return self._stream if topic == EVENTS_TOPIC else f"{self._prefix}:{topic}"

    async def open(self) -> None:
        self._closed = False
        await self._client.check()

    async def close(self) -> None:
        self._closed = True
        await self._client.close()

    # ── publishing ─────────────────────────────────────────────────────────

    async def publish(self, topic: str, bodies: Sequence[str]) -> None:
        check_topic(topic)
        check_bodies(bodies, self.limits)
        left = list(bodies)
        limits = self.limits
        while left:
            chunk = left[:MAX_MESSAGES_PER_CALL]
            call = _PUBLISH(self._client, self.key(topic), limits.capacity, limits.kept, _pack(chunk))
            added = await self._call(call)
            del left[:added]
            if added < len(chunk):
                await asyncio.sleep(FULL_TOPIC_RETRY_SECONDS)

    # ── consuming ──────────────────────────────────────────────────────────

    async def consume(
        self, topic: str, *, group: str | None, consumer: str, limit: int = 100
    ) -> AsyncGenerator[list[Message], None]:
        check_topic(topic)
        check_name(consumer, "consumer")
        check_limit(limit)
        if group is None:
            batches = self._consume_all(topic, limit)
        else:
            batches = self._consume_group(topic, group, consumer, limit)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                yield batch

    async def _consume_group(
        self, topic: str, group: str, consumer: str, limit: int
    ) -> AsyncGenerator[list[Message], None]:
        """Yield batches of up to `limit` messages to the member `consumer` of a consumer group.

        Messages that were not acknowledged in time come before new messages. The first batch is empty. While no message
        comes, another empty batch follows after each interval of at most a second. An empty batch shows the caller that
        the broker answers.
        """
        check_name(group, "group")
        key = self.key(topic)
        await self._create_group(key, group)
        yield []
        interval = min(MAX_RECLAIM_SECONDS, self.limits.redeliver_after / 2_000)
        reclaimed_at = 0.0
        while not self._closed:
            try:
                if time.monotonic() - reclaimed_at >= interval:
                    overdue = await self._reclaim(topic, group, consumer, limit)
                    if overdue:
                        yield overdue
                        continue
                    reclaimed_at = time.monotonic()
                batch = await self._read_new(topic, group, consumer, limit, max(1, int(interval * 1_000)))
            except _GroupMissing:  # the server was emptied: begin again with the messages that it has
                await self._create_group(key, group)
                continue
            if batch or not self._closed:
                yield batch

    async def _reclaim(self, topic: str, group: str, consumer: str, limit: int) -> list[Message]:
        """Return up to `limit` messages of a group that were not acknowledged in time, as deliveries to `consumer`.

        Messages that were delivered too many times already become dead letters instead.
        """
        limits = self.limits
        call = _RECLAIM(self._client, self.key(topic), group, consumer, limits.redeliver_after, limit)
        found = [
            Message(topic, number.decode(), body.decode(errors="backslashreplace"), deliveries)
            for number, body, deliveries in await self._call(call)
        ]
        spent = [message for message in found if message.deliveries > limits.max_deliveries]
        for message in spent:
            # The count includes this delivery, which reaches no consumer.
            delivered = Message(topic, message.id, message.body, message.deliveries - 1)
            await self.bury([delivered], group=group, reason=f"delivered {plural(delivered.deliveries, 'time')}")
        return [message for message in found if message.deliveries <= limits.max_deliveries]

    async def _read_new(self, topic: str, group: str, consumer: str, limit: int, block: int) -> list[Message]:
        """Return up to `limit` messages that the group has not received yet; if there is none, wait for the first.

        The wait ends after `block` milliseconds, or READ_BLOCK_MS if this is less. Return [] if no message came.
        """
        block = min(block, READ_BLOCK_MS)
        call = self._client.redis.xreadgroup(group, consumer, {self.key(topic): ">"}, count=limit, block=block)
        return _parse_messages(topic, await self._call(call))

    async def _consume_all(self, topic: str, limit: int) -> AsyncGenerator[list[Message], None]:
        """Yield batches of up to `limit` messages to a consumer without a group.

        The first batch is empty: every message that is published after it will be received. Later empty batches, one
        for each second without messages, show that the broker answers.
        """
        key = self.key(topic)
        newest = await self._call(self._client.redis.xrevrange(key, count=1))
        last_id: Any = newest[0][0] if newest else b"0-0"
        announced_at = 0.0
        while not self._closed:
            if time.monotonic() - announced_at >= READER_TTL_SECONDS / 3:
                await self._call(self._client.redis.set(self._readers_key(topic), 1, ex=READER_TTL_SECONDS))
                if not announced_at:
                    yield []
                announced_at = time.monotonic()
            answer = await self._call(self._client.redis.xread({key: last_id}, count=limit, block=READ_BLOCK_MS))
            batch = _parse_messages(topic, answer)
            if batch:
                last_id = batch[-1].id
            if batch or not self._closed:
                yield batch

    async def _create_group(self, key: str, group: str) -> None:
        """Create a consumer group on the stream `key`, beginning with the first message that the stream has.

        If the group exists, only remove those of its consumers that have read nothing for a day and hold no message.
        """
        try:
            await self._call(self._client.redis.xgroup_create(key, group, id="0", mkstream=True))
        except _GroupExists:
            for member in await self._call(self._client.redis.xinfo_consumers(key, group), missing=()):
                if member["pending"] == 0 and member["idle"] > ABANDONED_CONSUMER_MS:
                    await self._call(self._client.redis.xgroup_delconsumer(key, group, member["name"]), missing=0)

    # ── acknowledging ──────────────────────────────────────────────────────

    async def ack(self, messages: Sequence[Message], *, group: str) -> None:
        for topic, ids in _group_by_topic(messages).items():
            for start in range(0, len(ids), MAX_MESSAGES_PER_CALL):
                chunk = " ".join(ids[start : start + MAX_MESSAGES_PER_CALL])
                await self._call(_ACK(self._client, self.key(topic), group, chunk))

    async def nack(self, messages: Sequence[Message], *, group: str, delay: Ms = 0) -> None:
        limits = self.limits
        spent = [message for message in messages if message.deliveries >= limits.max_deliveries]
        for message in spent:
            await self.bury([message], group=group, reason=f"delivered {plural(message.deliveries, 'time')}")
        rest = [message for message in messages if message.deliveries < limits.max_deliveries]
        idle = max(0, limits.redeliver_after - delay)
        for topic, ids in _group_by_topic(rest).items():
            for start in range(0, len(ids), MAX_MESSAGES_PER_CALL):
                chunk = ids[start : start + MAX_MESSAGES_PER_CALL]
                await self._call(_NACK(self._client, self.key(topic), group, idle, *chunk), missing=0)

    async def bury(self, messages: Sequence[Message], *, group: str, reason: str) -> None:
        for message in messages:  # first added as a dead letter: after a crash, a message is at worst in both streams
            fields: dict[Any, Any] = {
                "topic": message.topic,
                "body": message.body,
                "deliveries": message.deliveries,
                "reason": reason[:500],
            }
            await self._call(self._client.redis.xadd(self._dead_key, fields, maxlen=self.limits.dead, approximate=True))
        await self.ack(messages, group=group)

    async def depth(self, topic: str, *, group: str) -> Depth:
        key = self.key(topic)
        held = int(await self._call(self._client.redis.xlen(key)))
        pending = await self._call(self._client.redis.xpending(key, group), missing=None) if held else None
        unanswered = 0 if pending is None else int(pending["pending"])
        return Depth(max(0, held - unanswered), unanswered)

    async def has_readers(self, topic: str) -> bool:
        if self._events_always and topic == EVENTS_TOPIC:
            return True
        if await self._call(self._client.redis.exists(self._readers_key(topic))):
            return True
        return bool(await self._call(self._client.redis.xinfo_groups(self.key(topic)), missing=()))

    def _readers_key(self, topic: str) -> str:
        """Return the key that exists while a consumer without a group reads this topic."""
        return f"{self.key(topic)}:readers"

    # ── dead letters ───────────────────────────────────────────────────────

    @property
    def _dead_key(self) -> str:
        """The key of the stream of dead letters."""
        return f"{self._prefix}:{DEAD_LETTER_TOPIC}"

    async def dead_letters(self, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        if after is not None and not _ID.fullmatch(after):
            raise InvalidInput(
                "after", f"{after!r:.40} is not the id of a dead letter", "Give the id of the last one you were shown"
            )
        first = "-" if after is None else f"({after}"
        found = await self._call(self._client.redis.xrange(self._dead_key, min=first, max="+", count=limit))
        return [_parse_dead_letter(number, fields) for number, fields in found]

    async def replay(self, ids: Sequence[str]) -> int:
        replayed = 0
        for number in filter(_ID.fullmatch, dict.fromkeys(ids)):
            found = await self._call(self._client.redis.xrange(self._dead_key, min=number, max=number))
            for _, fields in found:
                letter = _parse_dead_letter(number.encode(), fields)
                await self.publish(letter.topic, [letter.body])
                replayed += await self.discard([number])
        return replayed

    async def discard(self, ids: Sequence[str]) -> int:
        known = [number for number in ids if _ID.fullmatch(number)]
        return int(await self._call(self._client.redis.xdel(self._dead_key, *known))) if known else 0

    async def _call(self, call: Awaitable[T], **otherwise: Any) -> T:
        """Await a call to the server and return its answer.

        If the group or the topic does not exist, return the keyword argument `missing`. If this argument is not given,
        raise _GroupMissing. `otherwise` has no other argument.

        Raises: BrokerError and its subclasses; _GroupMissing and _GroupExists, which callers handle.
        """
        if self._closed:
            if asyncio.iscoroutine(call):
                call.close()
            raise BrokerUnavailable("this broker was closed")
        try:
            return await self._client.run(call)
        except DRIVER_ERRORS as error:
            text = str(error)
            if "NOGROUP" in text or "no such key" in text:
                if "missing" in otherwise:
                    return otherwise["missing"]  # type: ignore[no-any-return]  # of the type that the caller wants
                raise _GroupMissing from error
            if "BUSYGROUP" in text:
                raise _GroupExists from error
            raise to_broker_error(error, self._client.where) from error


class _GroupMissing(Exception):
    """The consumer group, or the topic's stream, does not exist."""


class _GroupExists(Exception):
    """The consumer group exists already."""


def _parse_messages(topic: str, answer: Any) -> list[Message]:
    """Return the messages of a topic in the raw answer to XREAD or XREADGROUP; [] if it has none.

    Entries that were deleted from the stream are left out.
    """
    if not answer:
        return []
    return [
        Message(topic, number.decode(), (fields[1] if fields[0] == b"body" else _find_body(fields)).decode(*_LENIENT))
        for _, entries in answer
        for number, fields in entries
        if fields is not None
    ]


def _find_body(fields: list[bytes]) -> bytes:
    """Return the value of the field "body" of a stream's entry; b"" if it has none.

    `fields`: a list in which each name of a field is followed by its value.
    """
    return dict(zip(fields[::2], fields[1::2], strict=False)).get(b"body", b"")


def _group_by_topic(messages: Sequence[Message]) -> dict[str, list[str]]:
    """Return the ids of messages by topic: topic → ids."""
    found: dict[str, list[str]] = {}
    for message in messages:
        found.setdefault(message.topic, []).append(message.id)
    return found


def _parse_dead_letter(number: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
    """Return the dead letter in an entry of the stream of dead letters; `number`: the entry's id."""

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="backslashreplace")

    deliveries = text(b"deliveries")
    name = number.decode()
    return DeadLetter(
        id=name,
        topic=text(b"topic"),
        body=text(b"body"),
        deliveries=int(deliveries) if deliveries.isdigit() else 0,
        reason=text(b"reason"),
        at=int(name.partition("-")[0]),
    )
