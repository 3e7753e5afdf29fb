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

#: A row is a header, its owner, the numbers of its events, what it was born with, and what scripts seldom read.
_COMMON = """
local P = KEYS[1]
local call, pack, sub = redis.call, cmsgpack.pack, string.sub
local NUL = string.char(0)
local NAME = 'default/default' .. NUL .. '2' .. NUL .. 'nothing'
local QUEUE = 'queue:' .. NAME
local HEADER, BYTES = '>BBHIIIIHIHIi8i8i8i8i8i8', 80
local WAITING, RUNNING, SUCCEEDED, NEVER = 1, 2, 4, -1
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

-- What follows a row's head: places of what stands in the header, and how it ended.
local function rest(began, ms)
  return string.rep(NUL, 5) .. pack(0) .. NUL .. pack(nil, nil, nil, nil, began, ms) .. NUL
    .. pack(nil, nil, false, nil, nil, nil, nil)
end

-- A set names the sorted sets of a kind that hold something.
local function listed(names, kind, name)
  call(call('EXISTS', P .. kind .. name) == 1 and 'SADD' or 'SREM', P .. names, name)
end
"""
#: ARGV: id and change of each.
FILL = (
    _COMMON
    + """
local born = string.format('{"task":"nothing","due_at":%d}', now)
local middle = pack('nothing', 'enqueue', nil, nil, nil, false, 'default/default', 2, {}, nil)
local payload = pack(nil, nil)
local after = rest(nil, nil)
local waiting, all = {}, {}
numbers(#ARGV / 2)
for i = 1, #ARGV, 2 do
  local id = ARGV[i]
  local ident = pack(id, 'default', nil)
  local trail = record(pack(now, 1, ARGV[i + 1], 'RunScheduled', 1, nil) .. ident .. pack(nil, nil, nil, born))
  local head = ident .. middle .. payload
  rows[#rows + 1] = id
  rows[#rows + 1] = struct.pack(HEADER, 0, WAITING, 0, 1, 0, 0, #head, #ident, #ident + #middle, 0, #trail, now, now,
    NEVER, NEVER, NEVER, now) .. trail .. head .. after
  waiting[#waiting + 1] = now
  waiting[#waiting + 1] = id
  all[#all + 1] = 0
  all[#all + 1] = id
end
write()
call('ZADD', P .. QUEUE, unpack(waiting))
listed('queues', 'queue:', NAME)
call('ZADD', P .. 'runs:default', unpack(all))
listed('namespaces', 'runs:', 'default')
return #ARGV / 2
"""
)
#: ARGV: owner, ttl, limit. The ids and rows as they are now.
CLAIM = (
    _COMMON
    + """
local owner, ttl = ARGV[1], tonumber(ARGV[2])
local ids = call('ZRANGEBYSCORE', P .. QUEUE, '-inf', now, 'LIMIT', 0, ARGV[3])
if #ids == 0 then
  return {}
end
local found, leases = call('HMGET', P .. 'run', unpack(ids)), {}
numbers(#ids)
for i, id in ipairs(ids) do
  local row = found[i]
  local flags, _, crashes, n, epoch, attempt, head, ident, body_at, held, trail, due, ready, _, ended, _, created =
    struct.unpack(HEADER, row)
  local t = BYTES + held + trail
  local number = record(pack(now, n + 1, nil, 'RunStarted', 1, nil) .. sub(row, t + 1, t + ident)
    .. pack(epoch + 1, attempt + 1, owner, nil))
  rows[2 * i - 1] = id
  rows[2 * i] = struct.pack(HEADER, flags, RUNNING, crashes, n + 1, epoch + 1, attempt + 1, head, ident, body_at,
    #owner, trail + 6, due, ready, now, ended, now + ttl, created) .. owner .. sub(row, BYTES + held + 1, t) .. number
    .. sub(row, t + 1)
  leases[2 * i - 1], leases[2 * i] = now + ttl, id
end
write()
call('ZREM', P .. QUEUE, unpack(ids))
listed('queues', 'queue:', NAME)
call('ZADD', P .. 'own:' .. owner, unpack(leases))
listed('owners', 'own:', owner)
return rows
"""
)
#: ARGV: owner, then id and change of each.
FINISH = (
    _COMMON
    + """
local owner, ids, ends = ARGV[1], {}, {}
for i = 2, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local found = call('HMGET', P .. 'run', unpack(ids))
numbers(#ids)
local said = string.format('{"began_at":%d,"ms":0}', now)
local after = rest(now, 0)
for i, id in ipairs(ids) do
  local row = found[i]
  local flags, state, crashes, n, epoch, attempt, head, ident, body_at, held, trail, due, ready, started, _, _,
    created = struct.unpack(HEADER, row)
  if state ~= RUNNING or epoch ~= 1 then
    return redis.error_reply('not the lease of ' .. id)
  end
  local t = BYTES + held + trail
  local number = record(pack(now, n + 1, ARGV[2 * i + 1], 'RunSucceeded', 1, nil) .. sub(row, t + 1, t + ident)
    .. pack(epoch, attempt, owner, said))
  rows[2 * i - 1] = id
  rows[2 * i] = struct.pack(HEADER, flags, SUCCEEDED, crashes, n + 1, epoch, attempt, head, ident, body_at, 0,
    trail + 6, due, ready, started, now, NEVER, created) .. sub(row, BYTES + held + 1, t) .. number
    .. sub(row, t + 1, t + head) .. after
  ends[2 * i - 1], ends[2 * i] = now, id
end
write()
call('ZREM', P .. 'own:' .. owner, unpack(ids))
call('ZADD', P .. 'ended', unpack(ends))
listed('owners', 'own:', owner)
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
