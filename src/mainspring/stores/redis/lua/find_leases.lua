-- Leases by name, from a prefix on or after a name.  ARGV: prefix, after or '', limit
local first = '[' .. ARGV[1]
if ARGV[2] ~= '' and ARGV[2] >= ARGV[1] then first = '(' .. ARGV[2] end
-- No UTF-8 text goes on with this byte: it ends the prefix's range.
local names = redis.call('ZRANGEBYLEX', KEYS[1] .. 'lease:names', first, '[' .. ARGV[1] .. '\255', 'LIMIT', 0, ARGV[3])
local found = {}
if #names == 0 then return found end
local rows = redis.call('HMGET', KEYS[1] .. 'lease:rows', unpack(names))
for i, name in ipairs(names) do
  found[2 * i - 1] = name
  found[2 * i] = rows[i]
end
return found
