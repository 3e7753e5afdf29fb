"""The floor on Redis: what bare Lua can do with our keys, and no engine around it.

Batches of 100 on one connection: one call to claim with `RunStarted`, one to finish with `RunSucceeded`, whole rows
read and written, the same hashes, sorted sets and events as our store (docs/redis.md).
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from redis.asyncio import Redis

from bench.contenders.common import Figures, Meter, main, rate
from bench.contenders.redis.peer import Looks

BATCH = 100
FILL_BATCH = 1_000
OWNER = "floor.example:4242:a1b2c3"
LEASE_MS = 30_000
PREFIX = "mainspring"

#: A row is a header, the numbers of its events, then the fields of a run, of which a script of ours reads the last 22.
_COMMON = """
local P = KEYS[1]
local call, pack = redis.call, cmsgpack.pack
local NUL = string.char(0)
local QUEUE = 'queue:default/default' .. NUL .. '2' .. NUL .. 'nothing'
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local rows, log, seq = {}, {}, nil

local function numbers(count)
  seq = call('INCRBY', P .. 'seq', count) - count
end

local function record(event)
  seq = seq + 1
  local block = math.floor(seq / 256)
  log[block] = log[block] or {}
  local values = log[block]
  values[#values + 1] = string.format('%d', seq)
  values[#values + 1] = event
  return struct.pack('>I6', seq)
end

local function write()
  for block, values in pairs(log) do
    local name = string.format('%d', block)
    call('HSET', P .. 'log:' .. name, unpack(values))
    call('ZADD', P .. 'blocks', block, name)
  end
  call('HSET', P .. 'run', unpack(rows))
end
"""
#: ARGV: id and change of each.
FILL = (
    _COMMON
    + """
local born = string.format('{"task":"nothing","due_at":%d}', now)
local middle = pack('nothing', 'enqueue', nil, nil, nil, false, 'default/default', 2, {}, nil)
local rest = pack(nil, nil)
local life = pack('waiting', 1, now, now, 0, 0, 0, 0, nil, nil, nil, nil, nil, nil, now, nil, nil)
  .. pack(false, nil, nil, nil, nil)
local waiting, all = {}, {}
numbers(#ARGV / 2)
for i = 1, #ARGV, 2 do
  local id = ARGV[i]
  local ident = pack(id, 'default', nil)
  local trail = record(pack(now, 1, ARGV[i + 1], 'RunScheduled', 1, nil) .. ident .. pack(nil, nil, nil, born))
  local body_at = #ident + #middle
  rows[#rows + 1] = id
  rows[#rows + 1] = struct.pack('>BIHII', 0, #trail, #ident, body_at, body_at + #rest)
    .. trail .. ident .. middle .. rest .. life
  waiting[#waiting + 1] = now
  waiting[#waiting + 1] = id
  all[#all + 1] = 0
  all[#all + 1] = id
end
write()
call('ZADD', P .. QUEUE, unpack(waiting))
call('SADD', P .. 'queues', string.sub(QUEUE, 7))
call('ZADD', P .. 'runs:default', unpack(all))
call('SADD', P .. 'namespaces', 'default')
return #ARGV / 2
"""
)
_MOVE = (
    _COMMON
    + """
local function opened(s)
  local flags, trail, ident, body_at, head = struct.unpack('>BIHII', s)
  local at = 15 + trail
  local _, state, n, due, ready, epoch, attempt, failures, crashes, cancel, reason, result, err, began, ms, created,
    started, ended, dead, owner, lease, parked, progress = cmsgpack.unpack_limit(s, 22, at + head)
  return {
    flags = flags, trail = string.sub(s, 16, at), ident = ident, body_at = body_at,
    head = string.sub(s, at + 1, at + head), n = n, due = due, ready = ready, epoch = epoch, attempt = attempt,
    failures = failures, crashes = crashes, created = created, started = started, state = state, began = began, ms = ms,
    ended = ended, owner = owner, lease = lease,
  }
end

local function closed(r)
  return struct.pack('>BIHII', r.flags, #r.trail, r.ident, r.body_at, #r.head) .. r.trail .. r.head
    .. pack(r.state, r.n, r.due, r.ready, r.epoch, r.attempt, r.failures, r.crashes, nil, nil, nil, nil, r.began, r.ms,
      r.created, r.started, r.ended, false, r.owner, r.lease, nil, nil)
end
"""
)
#: ARGV: owner, ttl, limit. The rows as they are now.
CLAIM = (
    _MOVE
    + """
local owner, ttl = ARGV[1], tonumber(ARGV[2])
local ids = call('ZRANGEBYSCORE', P .. QUEUE, '-inf', now, 'LIMIT', 0, ARGV[3])
if #ids == 0 then
  return {}
end
local found, leases, answer = call('HMGET', P .. 'run', unpack(ids)), {}, {}
numbers(#ids)
for i, id in ipairs(ids) do
  local r = opened(found[i])
  r.state, r.n, r.epoch, r.attempt, r.owner, r.lease, r.started =
    'running', r.n + 1, r.epoch + 1, r.attempt + 1, owner, now + ttl, now
  r.trail = r.trail .. record(
    pack(now, r.n, nil, 'RunStarted', 1, nil) .. string.sub(r.head, 1, r.ident) .. pack(r.epoch, r.attempt, owner, nil))
  rows[2 * i - 1], rows[2 * i] = id, closed(r)
  leases[2 * i - 1], leases[2 * i] = r.lease, id
  answer[2 * i - 1], answer[2 * i] = id, rows[2 * i]
end
write()
call('ZREM', P .. QUEUE, unpack(ids))
call('ZADD', P .. 'own:' .. owner, unpack(leases))
call('SADD', P .. 'owners', owner)
return answer
"""
)
#: ARGV: owner, then id and change of each.
FINISH = (
    _MOVE
    + """
local owner, ids, ends = ARGV[1], {}, {}
for i = 2, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local found = call('HMGET', P .. 'run', unpack(ids))
numbers(#ids)
local said = string.format('{"began_at":%d,"ms":0}', now)
for i, id in ipairs(ids) do
  local r = opened(found[i])
  if r.state ~= 'running' or r.epoch ~= 1 then
    return redis.error_reply('not the lease of ' .. id)
  end
  r.state, r.n, r.began, r.ms, r.ended, r.owner, r.lease = 'succeeded', r.n + 1, now, 0, now, nil, nil
  r.trail = r.trail .. record(
    pack(now, r.n, ARGV[2 * i + 1], 'RunSucceeded', 1, nil) .. string.sub(r.head, 1, r.ident)
      .. pack(r.epoch, r.attempt, nil, said))
  rows[2 * i - 1], rows[2 * i] = id, closed(r)
  ends[2 * i - 1], ends[2 * i] = now, id
end
write()
call('ZREM', P .. 'own:' .. owner, unpack(ids))
call('ZADD', P .. 'ended', unpack(ends))
return #ids
"""
)


class Floor:
    """The keys of our store, filled and drained by hand."""

    def __init__(self, url: str, prefix: str = PREFIX) -> None:
        self.client: Any = Redis.from_url(url, single_connection_client=True)
        self._keys = [f"{{{prefix}}}:"]
        self._fill, self._claim, self._finish = (self.client.register_script(one) for one in (FILL, CLAIM, FINISH))
        self._numbers = itertools.count(1)

    def _new_id(self) -> str:
        """Like those of ours: in the form of a UUID and in the order of time."""
        number = f"{next(self._numbers):018x}"
        return f"0190a1b2-c3d4-7{number[:3]}-8{number[3:6]}-{number[6:]}"

    def _change(self) -> str:
        return f"0a1b2c3d4e{next(self._numbers):x}"

    async def fill(self, n: int, batch: int = FILL_BATCH) -> None:
        """Waiting runs with their first event; a batch of one is what one enqueue writes."""
        for start in range(0, n, batch):
            count = min(batch, n - start)
            words = [word for _ in range(count) for word in (self._new_id(), self._change())]
            await self._fill(keys=self._keys, args=words)

    async def drain(self) -> int:
        """Claim, run and finish batch after batch; how many."""
        done = 0
        while rows := await self._claim(keys=self._keys, args=[OWNER, LEASE_MS, BATCH]):
            ids = rows[::2]
            for _ in ids:
                nothing()
            words = [word for one in ids for word in (one, self._change())]
            await self._finish(keys=self._keys, args=[OWNER, *words])
            done += len(ids)
        return done

    async def close(self) -> None:
        await self.client.aclose()


def nothing() -> None:
    """The work."""


async def _durability(url: str) -> str:
    look = await Looks.connect(url)
    try:
        return await look.durability()
    finally:
        await look.close()


async def _drain(url: str, n: int, **_: Any) -> Figures:
    floor = Floor(url)
    meter = Meter()
    await floor.fill(n)
    filled = meter.wall()
    meter = Meter()
    done = await floor.drain()
    seconds, cpu = meter.wall(), meter.cpu()
    ended = await floor.client.zcard(f"{{{PREFIX}}}:ended")
    events = int(await floor.client.get(f"{{{PREFIX}}}:seq"))
    await floor.close()
    if not done == ended == n or events != 3 * n:
        raise SystemExit(f"of {n} runs {done} were drained, {ended} have ended, with {events} events")
    return {
        "n": n,
        "per_second": rate(n, seconds),
        "cpu_us": cpu / n * 1e6,
        "fill_per_second": rate(n, filled),
        "durability": await _durability(url),
    }


async def _enqueue_one(url: str, n: int, **_: Any) -> Figures:
    floor = Floor(url)
    await floor.fill(100, batch=1)
    meter = Meter()
    await floor.fill(n, batch=1)
    figures = {"n": n, "per_second": rate(n, meter.wall()), "cpu_us": meter.cpu() / n * 1e6}
    await floor.close()
    return figures | {"durability": await _durability(url)}


if __name__ == "__main__":
    main(
        {
            "drain": lambda **p: asyncio.run(_drain(**p)),
            "enqueue_one": lambda **p: asyncio.run(_enqueue_one(**p)),
        }
    )
