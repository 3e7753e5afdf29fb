-- The ids of runs by the states they are in, where an index of the state has them, or nil when they are too many.
-- ARGV: most, then states out of: waiting (and retrying), running, blocked, ended badly, dead
local most, ids = tonumber(ARGV[1]), {}

local function add(key)
  if ids and #ids + call('ZCARD', P .. key) <= most then
    for _, id in ipairs(call('ZRANGE', P .. key, 0, -1)) do
      ids[#ids + 1] = id
    end
  else
    ids = nil
  end
end

local function add_all(roster, kind)
  for _, name in ipairs(call('SMEMBERS', P .. roster)) do
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
