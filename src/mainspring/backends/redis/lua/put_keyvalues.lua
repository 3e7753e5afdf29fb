-- Write key-value entries. An existing entry that has not expired is overwritten only if `replace` is set.
-- KEYS[1]: prefix. ARGV: now or '', '1' to replace, then for each entry: kind NUL id, data, created_at or 0 for now,
-- expires_at or ''
-- A row: {data, created_at, expires_at or false}. Returns for each entry 1 if it was written, else 0.
local now, replace = current_time(ARGV[1]), ARGV[2] == '1'
local rows, names, ends = KEYS[1] .. 'kept:rows', KEYS[1] .. 'kept:names', KEYS[1] .. 'kept:ends'
local answers = {}
redis.call('DEL', KEYS[1] .. 'none') -- a first write that needs no memory: the server then refuses nothing more
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
