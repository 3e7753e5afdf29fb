-- Remove key-value entries. KEYS[1]: prefix. ARGV: names (kind NUL id). Returns how many existed.
local count = 0
for _, name in ipairs(ARGV) do
  count = count + redis.call('HDEL', KEYS[1] .. 'kept:rows', name)
  redis.call('ZREM', KEYS[1] .. 'kept:names', name)
  redis.call('ZREM', KEYS[1] .. 'kept:ends', name)
end
return count
