-- New runs by the shortest way: they wait in a queue, and nothing else comes with them but their payloads.
-- ARGV: now or '', {ids, queues, namespaces, payloads, unique keys, whose}, then for each run its header, head and rest, and event.
-- A queue: {name, places of its runs, their times}; a namespace: {name, places}; a payload: {id, uses, text or nil}.
-- {now, 0 when all were written, 1 when a run or the holder of a key exists and none was}

local P, call = KEYS[1], redis.call
local given = cmsgpack.unpack(ARGV[2])
local ids = given[1]
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
local keys, whose = given[5], given[6]
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
local rows, log, block, events = {}, {}, -1, nil
for i = 1, count do
  seq = seq + 1
  rows[2 * i - 1] = ids[i]
  rows[2 * i] = ARGV[3 * i] .. instant .. struct.pack('>I6', seq) .. ARGV[3 * i + 1]
  if math.floor(seq / 256) ~= block then
    block = math.floor(seq / 256)
    events = {}
    log[block] = events
  end
  events[#events + 1] = string.format('%d', seq)
  events[#events + 1] = at .. ARGV[3 * i + 2]
end
call('HSET', P .. 'run', unpack(rows))
for number, values in pairs(log) do
  local name = string.format('%d', number)
  call('HSET', P .. 'log:' .. name, unpack(values))
  call('ZADD', P .. 'blocks', number, name)
end
if #keys > 0 then
  local values = {}
  for i, place in ipairs(whose) do
    values[2 * i - 1], values[2 * i] = keys[i], ids[place]
  end
  call('HSET', P .. 'unique', unpack(values))
end
for _, queue in ipairs(given[2]) do
  local values = {}
  for i, place in ipairs(queue[2]) do
    values[2 * i - 1], values[2 * i] = queue[3][i], ids[place]
  end
  call('ZADD', P .. 'queue:' .. queue[1], unpack(values))
  call('SADD', P .. 'queues', queue[1])
end
for _, space in ipairs(given[3]) do
  local values = {}
  for i, place in ipairs(space[2]) do
    values[2 * i - 1], values[2 * i] = '0', ids[place]
  end
  call('ZADD', P .. 'runs:' .. space[1], unpack(values))
  call('SADD', P .. 'namespaces', space[1])
end
for _, body in ipairs(given[4]) do
  if call('HINCRBY', P .. 'uses', body[1], body[2]) == body[2] and body[3] then
    call('HSET', P .. 'body', body[1], body[3])
  end
end
return { now, 0 }
