-- Fast path of apply.lua: insert runs that only wait for a worker, and their payloads.
-- KEYS[1]: prefix. ARGV: now or '', {ids, queues, namespaces, payloads, unique keys, positions of the runs with these
-- keys}, then for each run three values: its header, its head and rest (common.lua describes them), and its event
-- A queue: {name, positions of its runs, their ready times}; a namespace: {name, positions of its runs}; a payload:
-- {id, number of runs that use it, text or nil}. A run's position is the index of its id in `ids`, from 1.
-- Returns {now, 0} if all runs were written; {now, 1}, with nothing written, if a run exists or a unique key is held.
-- This script does not include common.lua, because a short script costs less per call than a long script.

local P, call = KEYS[1], redis.call
local batch = cmsgpack.unpack(ARGV[2])
local ids = batch[1]
local now = tonumber(ARGV[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
for _, row in ipairs(call('HMGET', P .. 'run', unpack(ids))) do
  if row then
    return { now, 1 }
  end
end
local keys, key_holders = batch[5], batch[6]
if #keys > 0 then
  for _, holder in ipairs(call('HMGET', P .. 'unique', unpack(keys))) do
    if holder then
      return { now, 1 }
    end
  end
end
local count = #ids
local seq = call('INCRBY', P .. 'seq', count) - count
local at, instant = cmsgpack.pack(now) .. string.char(1), struct.pack('>i8', now)
local rows, blocks, block, events = {}, {}, -1, nil
for i = 1, count do
  seq = seq + 1
  rows[2 * i - 1] = ids[i]
  rows[2 * i] = ARGV[3 * i] .. instant .. struct.pack('>I6', seq) .. ARGV[3 * i + 1]
  if math.floor(seq / 256) ~= block then
    block = math.floor(seq / 256)
    events = {}
    blocks[block] = events
  end
  events[#events + 1] = string.format('%d', seq)
  events[#events + 1] = at .. ARGV[3 * i + 2]
end
call('HSET', P .. 'run', unpack(rows))
for number, values in pairs(blocks) do
  local name = string.format('%d', number)
  call('HSET', P .. 'log:' .. name, unpack(values))
  call('ZADD', P .. 'blocks', number, name)
end
if #keys > 0 then
  local values = {}
  for i, place in ipairs(key_holders) do
    values[2 * i - 1], values[2 * i] = keys[i], ids[place]
  end
  call('HSET', P .. 'unique', unpack(values))
end
for _, queue in ipairs(batch[2]) do
  local values = {}
  for i, place in ipairs(queue[2]) do
    values[2 * i - 1], values[2 * i] = queue[3][i], ids[place]
  end
  call('ZADD', P .. 'queue:' .. queue[1], unpack(values))
  call('SADD', P .. 'queues', queue[1])
end
for _, space in ipairs(batch[3]) do
  local values = {}
  for i, place in ipairs(space[2]) do
    values[2 * i - 1], values[2 * i] = '0', ids[place]
  end
  call('ZADD', P .. 'runs:' .. space[1], unpack(values))
  call('SADD', P .. 'namespaces', space[1])
end
for _, body in ipairs(batch[4]) do
  if call('HINCRBY', P .. 'uses', body[1], body[2]) == body[2] and body[3] then
    call('HSET', P .. 'body', body[1], body[3])
  end
end
return { now, 0 }
