-- Find leases whose name has a prefix, by name.
-- KEYS[1]: prefix of every key. ARGV: now or '', prefix of the name, name to begin after or '', limit
-- Returns {now, name, row, …}.
local first = '[' .. ARGV[2]
if ARGV[3] ~= '' and ARGV[3] >= ARGV[2] then first = '(' .. ARGV[3] end
-- Byte 255 occurs in no UTF-8 text, so it is greater than every name with this prefix.
local names = redis.call('ZRANGEBYLEX', KEYS[1] .. 'lease:names', first, '[' .. ARGV[2] .. '\255', 'LIMIT', 0, ARGV[4])
local found = { current_time(ARGV[1]) }
if #names == 0 then return found end
local rows = redis.call('HMGET', KEYS[1] .. 'lease:rows', unpack(names))
for i, name in ipairs(names) do
  found[2 * i] = name
  found[2 * i + 1] = rows[i]
end
return found
