-- Keep things beside the log.  ARGV: now, '1' to replace, then for each: kind and id, data, created or 0, expires or ''
-- A row is {data, created_at, expires_at or false}; its name is the kind, a NUL and the id.
local now, replace = clock(ARGV[1]), ARGV[2] == '1'
local rows, names, ends = KEYS[1] .. 'kept:rows', KEYS[1] .. 'kept:names', KEYS[1] .. 'kept:ends'
local answers = {}
redis.call('DEL', KEYS[1] .. 'none') -- needs no memory, and lets the rest go on at maxmemory
for i = 3, #ARGV, 4 do
  local name = ARGV[i]
  local free = true
  if not replace then
    local packed = redis.call('HGET', rows, name)
    local old = packed and cmsgpack.unpack(packed)
    free = not old or (old[3] and old[3] <= now)
  end
  if free then
    local created = tonumber(ARGV[i + 2])
    local expires = ARGV[i + 3] ~= '' and tonumber(ARGV[i + 3])
    redis.call('HSET', rows, name, cmsgpack.pack({ARGV[i + 1], created == 0 and now or created, expires}))
    redis.call('ZADD', names, 0, name)
    if expires then redis.call('ZADD', ends, expires, name) else redis.call('ZREM', ends, name) end
  end
  answers[#answers + 1] = free and 1 or 0
end
return answers
