-- Read the log after a number, in whole blocks, until at least `limit` events are found or the log ends.
-- KEYS[1]: prefix. ARGV: number to begin after, limit. Returns {number, event, …} in no order.
local after, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local first = floor((after + 1) / BLOCK_EVENTS)
local found, at = {}, 0
while #found < 2 * limit do
  local blocks = call('ZRANGEBYSCORE', P .. 'blocks', first, '+inf', 'LIMIT', at, 8)
  if #blocks == 0 then
    break
  end
  for _, block in ipairs(blocks) do
    if #found < 2 * limit then
      local events = call('HGETALL', P .. 'log:' .. block)
      for i = 1, #events, 2 do
        if tonumber(events[i]) > after then
          found[#found + 1] = events[i]
          found[#found + 1] = events[i + 1]
        end
      end
    end
  end
  at = at + #blocks
end
return found
