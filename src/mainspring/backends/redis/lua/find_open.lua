-- Find the ids of runs by state, from the indexes of these states.
-- KEYS[1]: prefix. ARGV: maximum number of ids, then one or more of these indexes: waiting (and retrying), running,
-- blocked, unhappy (ended unsuccessfully), dead
-- Returns the ids in no order, or nil if there are more than the maximum.
local max_ids, ids = tonumber(ARGV[1]), {}

-- Add the members of one sorted set to `ids`; set `ids` to nil if there would be more than the maximum.
local function add(key)
  if ids and #ids + call('ZCARD', P .. key) <= max_ids then
    for _, id in ipairs(call('ZRANGE', P .. key, 0, -1)) do
      ids[#ids + 1] = id
    end
  else
    ids = nil
  end
end

-- Add the members of every sorted set `kind .. name` whose name a registry lists.
local function add_all(registry, kind)
  for _, name in ipairs(call('SMEMBERS', P .. registry)) do
    add(kind .. name)
  end
end

for i = 2, #ARGV do
  if ARGV[i] == 'waiting' then
    add_all('queues', 'queue:')
    add_all('parked', 'park:')
  elseif ARGV[i] == 'running' then
    add_all('owners', 'own:')
  else
    add(ARGV[i])
  end
end
return ids or false
