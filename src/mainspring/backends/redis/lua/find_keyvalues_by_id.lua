-- Find key-value entries by name, without expired ones.
-- KEYS[1]: prefix. ARGV: now or '', then names (kind NUL id). Returns {name, row, …}.
local now = current_time(ARGV[1])
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
