"""Redis Streams, on Redis and Valkey: a stream for each topic, consumer groups, one call for each batch.

A message that every group has acknowledged is deleted, so a topic's length is what is still to be done. No script
touches more than one key: topics may live on different nodes of a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Any, TypeVar

import msgspec

from mainspring.brokers.checks import check_bodies, check_limit, check_topic, check_word
from mainspring.brokers.redis_client import Client, Script, translated
from mainspring.model.errors import BrokerUnavailable, InvalidInput
from mainspring.model.instant import Ms
from mainspring.ports.broker import DEAD, EVENTS, DeadLetter, Depth, Limits, Message
from mainspring.stores.redis.errors import DRIVER

T = TypeVar("T")
_pack = msgspec.msgpack.Encoder().encode

#: A read waits so long for messages, in milliseconds; then it says that the broker is there.
BLOCK = 1_000
#: Between two looks for messages that come again, in seconds, at most.
LOOK_AGAIN = 1.0
#: Who reads without a group says so every so often; that holds for so many seconds.
READER = 15
#: A consumer that asked for nothing for so many milliseconds is there no more.
GONE = 86_400_000
#: So many arguments one call takes.
CHUNK = 1_000
#: Between two tries when a topic is full, in seconds.
FULL = 0.05
_LENIENT = ("utf-8", "backslashreplace")
_ID = re.compile(r"\d{1,18}-\d{1,18}")
DEFAULT_PREFIX = "mainspring"
DEFAULT_STREAM = "scheduler-events"

#: capacity, kept, bodies (MessagePack: one argument is packed much faster than a thousand) → how many were added: a
#: topic that a group reads takes no more than it may hold.
_PUBLISH = Script("""
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
#: group, ids with spaces between them; deletes what no other group still needs.
_ACK = Script("""
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
#: group, consumer, idle ms, limit → {id, body, deliveries}… of what was not acknowledged in time.
_AGAIN = Script("""
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
#: group, how long ago they shall count as delivered, ids… : so they come again after the rest of the time-out.
_PUT_BACK = Script("""
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
    """Topics as streams `<prefix>:<topic>`; the events of all instances in a stream that others may read."""

    def __init__(
        self,
        client: Client,
        *,
        prefix: str = DEFAULT_PREFIX,
        stream: str | None = None,
        always: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._stream = stream or (DEFAULT_STREAM if prefix == DEFAULT_PREFIX else f"{prefix}:{DEFAULT_STREAM}")
        self.limits = limits or Limits()
        #: Tell of events although nobody is known to read them: plain XREAD leaves no trace.
        self._always = always
        self._closed = False

    def key(self, topic: str) -> str:
        """The stream of a topic."""
        return self._stream if topic == EVENTS else f"{self._prefix}:{topic}"

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
            chunk = left[:CHUNK]
            added = await self._do(_PUBLISH(self._client, self.key(topic), limits.capacity, limits.kept, _pack(chunk)))
            del left[:added]
            if added < len(chunk):
                await asyncio.sleep(FULL)

    # ── consuming ──────────────────────────────────────────────────────────

    async def consume(
        self, topic: str, *, group: str | None, consumer: str, limit: int = 100
    ) -> AsyncGenerator[list[Message], None]:
        check_topic(topic)
        check_word(consumer, "consumer")
        check_limit(limit)
        messages = self._follow(topic, limit) if group is None else self._share(topic, group, consumer, limit)
        async with contextlib.aclosing(messages):
            async for batch in messages:
                yield batch

    async def _share(self, topic: str, group: str, consumer: str, limit: int) -> AsyncGenerator[list[Message], None]:
        check_word(group, "group")
        key = self.key(topic)
        await self._join(key, group)
        yield []
        look = min(LOOK_AGAIN, self.limits.redeliver_after / 2_000)
        looked = 0.0
        while not self._closed:
            try:
                if time.monotonic() - looked >= look:
                    again = await self._again(topic, group, consumer, limit)
                    if again:
                        yield again
                        continue
                    looked = time.monotonic()
                batch = await self._read(topic, group, consumer, limit, max(1, int(look * 1_000)))
            except _NoGroup:  # somebody emptied the server: begin again with what is there
                await self._join(key, group)
                continue
            if batch or not self._closed:
                yield batch

    async def _again(self, topic: str, group: str, consumer: str, limit: int) -> list[Message]:
        """What was not acknowledged in time; those that came too often are buried."""
        limits = self.limits
        call = _AGAIN(self._client, self.key(topic), group, consumer, limits.redeliver_after, limit)
        found = [
            Message(topic, number.decode(), body.decode(errors="backslashreplace"), deliveries)
            for number, body, deliveries in await self._do(call)
        ]
        spent = [message for message in found if message.deliveries > limits.max_deliveries]
        for message in spent:
            came = Message(topic, message.id, message.body, message.deliveries - 1)
            await self.bury([came], group=group, reason=f"delivered {came.deliveries} times")
        return [message for message in found if message.deliveries <= limits.max_deliveries]

    async def _read(self, topic: str, group: str, consumer: str, limit: int, block: int) -> list[Message]:
        block = min(block, BLOCK)
        call = self._client.redis.xreadgroup(group, consumer, {self.key(topic): ">"}, count=limit, block=block)
        return _messages(topic, await self._do(call))

    async def _follow(self, topic: str, limit: int) -> AsyncGenerator[list[Message], None]:
        key = self.key(topic)
        newest = await self._do(self._client.redis.xrevrange(key, count=1))
        place: Any = newest[0][0] if newest else b"0-0"
        marked = 0.0
        while not self._closed:
            if time.monotonic() - marked >= READER / 3:
                await self._do(self._client.redis.set(self._readers(topic), 1, ex=READER))
                if not marked:
                    yield []
                marked = time.monotonic()
            batch = _messages(topic, await self._do(self._client.redis.xread({key: place}, count=limit, block=BLOCK)))
            if batch:
                place = batch[-1].id
            if batch or not self._closed:
                yield batch

    async def _join(self, key: str, group: str) -> None:
        """Make the group, or forget those of its consumers that went long ago and left nothing behind."""
        try:
            await self._do(self._client.redis.xgroup_create(key, group, id="0", mkstream=True))
        except _GroupThere:
            for one in await self._do(self._client.redis.xinfo_consumers(key, group), missing=()):
                if one["pending"] == 0 and one["idle"] > GONE:
                    await self._do(self._client.redis.xgroup_delconsumer(key, group, one["name"]), missing=0)

    # ── answering ──────────────────────────────────────────────────────────

    async def ack(self, messages: Sequence[Message], *, group: str) -> None:
        for topic, ids in _by_topic(messages).items():
            for start in range(0, len(ids), CHUNK):
                await self._do(_ACK(self._client, self.key(topic), group, " ".join(ids[start : start + CHUNK])))

    async def nack(self, messages: Sequence[Message], *, group: str, delay: Ms = 0) -> None:
        limits = self.limits
        spent = [message for message in messages if message.deliveries >= limits.max_deliveries]
        for message in spent:
            await self.bury([message], group=group, reason=f"delivered {message.deliveries} times")
        rest = [message for message in messages if message.deliveries < limits.max_deliveries]
        idle = max(0, limits.redeliver_after - delay)
        for topic, ids in _by_topic(rest).items():
            for start in range(0, len(ids), CHUNK):
                some = ids[start : start + CHUNK]
                await self._do(_PUT_BACK(self._client, self.key(topic), group, idle, *some), missing=0)

    async def bury(self, messages: Sequence[Message], *, group: str, reason: str) -> None:
        for message in messages:  # first there, then gone here: at worst there are two of it
            fields: dict[Any, Any] = {
                "topic": message.topic,
                "body": message.body,
                "deliveries": message.deliveries,
                "reason": reason[:500],
            }
            await self._do(self._client.redis.xadd(self._dead_key, fields, maxlen=self.limits.dead, approximate=True))
        await self.ack(messages, group=group)

    async def depth(self, topic: str, *, group: str) -> Depth:
        key = self.key(topic)
        held = int(await self._do(self._client.redis.xlen(key)))
        pending = await self._do(self._client.redis.xpending(key, group), missing=None) if held else None
        unanswered = 0 if pending is None else int(pending["pending"])
        return Depth(max(0, held - unanswered), unanswered)

    async def audience(self, topic: str) -> bool:
        if self._always and topic == EVENTS:
            return True
        if await self._do(self._client.redis.exists(self._readers(topic))):
            return True
        return bool(await self._do(self._client.redis.xinfo_groups(self.key(topic)), missing=()))

    def _readers(self, topic: str) -> str:
        """The key that is there while somebody reads a topic without a group."""
        return f"{self.key(topic)}:readers"

    # ── dead letters ───────────────────────────────────────────────────────

    @property
    def _dead_key(self) -> str:
        return f"{self._prefix}:{DEAD}"

    async def dead(self, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        if after is not None and not _ID.fullmatch(after):
            raise InvalidInput(
                "after", f"{after!r:.40} is not the id of a dead letter", "Give the last one you were shown"
            )
        first = "-" if after is None else f"({after}"
        found = await self._do(self._client.redis.xrange(self._dead_key, min=first, max="+", count=limit))
        return [_letter(number, fields) for number, fields in found]

    async def replay(self, ids: Sequence[str]) -> int:
        replayed = 0
        for number in filter(_ID.fullmatch, dict.fromkeys(ids)):
            found = await self._do(self._client.redis.xrange(self._dead_key, min=number, max=number))
            for _, fields in found:
                letter = _letter(number.encode(), fields)
                await self.publish(letter.topic, [letter.body])
                replayed += await self.discard([number])
        return replayed

    async def discard(self, ids: Sequence[str]) -> int:
        known = [number for number in ids if _ID.fullmatch(number)]
        return int(await self._do(self._client.redis.xdel(self._dead_key, *known))) if known else 0

    async def _do(self, call: Awaitable[T], **otherwise: Any) -> T:
        """One call to the server; `missing` is the answer when the group or topic is not there."""
        if self._closed:
            if asyncio.iscoroutine(call):
                call.close()
            raise BrokerUnavailable("this broker was closed")
        try:
            return await self._client.ask(call)
        except DRIVER as error:
            text = str(error)
            if "NOGROUP" in text or "no such key" in text:
                if "missing" in otherwise:
                    return otherwise["missing"]  # type: ignore[no-any-return]  # what the caller gave
                raise _NoGroup from error
            if "BUSYGROUP" in text:
                raise _GroupThere from error
            raise translated(error, self._client.where) from error


class _NoGroup(Exception):
    """The group is not there."""


class _GroupThere(Exception):
    """The group is there already."""


def _messages(topic: str, answer: Any) -> list[Message]:
    if not answer:
        return []
    return [
        Message(topic, number.decode(), (fields[1] if fields[0] == b"body" else _body(fields)).decode(*_LENIENT))
        for _, entries in answer
        for number, fields in entries
        if fields is not None
    ]


def _body(fields: list[bytes]) -> bytes:
    return dict(zip(fields[::2], fields[1::2], strict=False)).get(b"body", b"")


def _by_topic(messages: Sequence[Message]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for message in messages:
        found.setdefault(message.topic, []).append(message.id)
    return found


def _letter(number: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
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
