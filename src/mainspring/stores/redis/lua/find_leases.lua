-- Leases by name, from a prefix on or after a name.  ARGV: now, prefix, after or '', limit
-- {now, name, row, …}
local first = '[' .. ARGV[2]
if ARGV[3] ~= '' and ARGV[3] >= ARGV[2] then first = '(' .. ARGV[3] end
-- No UTF-8 text goes on with this byte: it ends the prefix's range.
local names = redis.call('ZRANGEBYLEX', KEYS[1] .. 'lease:names', first, '[' .. ARGV[2] .. '\255', 'LIMIT', 0, ARGV[4])
local found = { clock(ARGV[1]) }
if #names == 0 then return found end
local rows = redis.call('HMGET', KEYS[1] .. 'lease:rows', unpack(names))
for i, name in ipairs(names) do
  found[2 * i] = name
  found[2 * i + 1] = rows[i]
end
return found
