-- End a lease's term early, if the lease still has this owner and epoch.
-- KEYS[1]: prefix. ARGV: name, owner, epoch. Returns 1 if the term was ended, else 0.
local rows = KEYS[1] .. 'lease:rows'
local packed = redis.call('HGET', rows, ARGV[1])
local old = packed and cmsgpack.unpack(packed)
if not old or not old[6] or old[1] ~= ARGV[2] or old[2] ~= tonumber(ARGV[3]) then return 0 end
old[6] = false
redis.call('DEL', KEYS[1] .. 'none') -- a first write that needs no memory: the server then refuses nothing more
redis.call('HSET', rows, ARGV[1], cmsgpack.pack(old))
return 1
