-- Acquire a named lease that is free or expired (epoch ''), or renew the owner's term `epoch`. The row of a lease stays
-- after a term, so no epoch is issued twice.
-- KEYS[1]: prefix. ARGV: now or '', name, owner, ttl in ms, epoch or '', '1' if data follows, data
-- A row: {owner, epoch, expires_at, renewed_at, data or false, live}. Returns the new row, or nil if refused.
local now, name, owner = current_time(ARGV[1]), ARGV[2], ARGV[3]
local rows = KEYS[1] .. 'lease:rows'
local packed = redis.call('HGET', rows, name)
local old = packed and cmsgpack.unpack(packed)
local live = old and old[6] and old[3] > now
local epoch
local data = ARGV[6] == '1' and ARGV[7]
if ARGV[5] == '' then
  if live then return false end
  epoch = old and old[2] + 1 or 1
else
  epoch = tonumber(ARGV[5])
  if not live or old[1] ~= owner or old[2] ~= epoch then return false end
  data = data or old[5]
end
local row = cmsgpack.pack({owner, epoch, now + tonumber(ARGV[4]), now, data, true})
redis.call('DEL', KEYS[1] .. 'none') -- a first write that needs no memory: the server then refuses nothing more
redis.call('HSET', rows, name, row)
redis.call('ZADD', KEYS[1] .. 'lease:renewed', now, name)
if not old then redis.call('ZADD', KEYS[1] .. 'lease:names', 0, name) end
return row
