-- Rows of runs by an index of ids, from one on. ARGV: index, '1' oldest first, after or '', how many
local index, after, many = P .. ARGV[1], ARGV[3], ARGV[4]
local ids
if ARGV[2] == '1' then
  ids = call('ZRANGEBYLEX', index, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, many)
else
  ids = call('ZREVRANGEBYLEX', index, after == '' and '+' or '(' .. after, '-', 'LIMIT', 0, many)
end
local found = {}
for at = 1, #ids, ARGS do
  for _, row in ipairs(call('HMGET', P .. 'run', unpack(ids, at, math.min(at + ARGS - 1, #ids)))) do
    found[#found + 1] = row
  end
end
return found
