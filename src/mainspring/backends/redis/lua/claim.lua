-- Claim due runs. KEYS[1]: prefix. ARGV: now or '', {offer, limit, ids}
-- Returns what `claim` in claim_runs.lua returns.
local request = cmsgpack.unpack(ARGV[2])
return claim(current_time(ARGV[1]), request[1], request[2], request[3])
