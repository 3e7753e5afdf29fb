-- Kept things by name, but those that expired.  ARGV: now, then names
local now = clock(ARGV[1])
local found = {}
for i = 2, #ARGV do
  local packed = redis.call('HGET', KEYS[1] .. 'kept:rows', ARGV[i])
  local expires = packed and cmsgpack.unpack(packed)[3]
  if packed and not (expires and expires <= now) then
    found[#found + 1] = ARGV[i]
    found[#found + 1] = packed
  end
end
return found
