-- End a term early, if it is still the one that is there.  ARGV: name, owner, epoch
local rows = KEYS[1] .. 'lease:rows'
local packed = redis.call('HGET', rows, ARGV[1])
local old = packed and cmsgpack.unpack(packed)
if not old or not old[6] or old[1] ~= ARGV[2] or old[2] ~= tonumber(ARGV[3]) then return 0 end
old[6] = false
redis.call('DEL', KEYS[1] .. 'none')
redis.call('HSET', rows, ARGV[1], cmsgpack.pack(old))
return 1
