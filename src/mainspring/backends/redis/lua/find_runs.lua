-- Find runs by an index whose members are run ids.
-- KEYS[1]: prefix. ARGV: index, '1' for oldest first, id to begin after or '', limit
-- Returns rows by id, in ascending or (without '1') descending order; nil for an id without a row.
local index, after, limit = P .. ARGV[1], ARGV[3], ARGV[4]
local ids
if ARGV[2] == '1' then
  ids = call('ZRANGEBYLEX', index, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
else
  ids = call('ZREVRANGEBYLEX', index, after == '' and '+' or '(' .. after, '-', 'LIMIT', 0, limit)
end
local found = {}
for at = 1, #ids, MAX_ARGS do
  for _, row in ipairs(call('HMGET', P .. 'run', unpack(ids, at, math.min(at + MAX_ARGS - 1, #ids)))) do
    found[#found + 1] = row
  end
end
return found
