-- Find key-value entries of one kind by id, without expired ones.
-- KEYS[1]: prefix. ARGV: now or '', kind and NUL in one text, id to begin after or '', limit. Returns {name, row, …}.
local now, kind, limit = current_time(ARGV[1]), ARGV[2], tonumber(ARGV[4])
local first = '[' .. kind
if ARGV[3] ~= '' then first = '(' .. kind .. ARGV[3] end
local found = {}
while #found < 2 * limit do
  local names = redis.call('ZRANGEBYLEX', KEYS[1] .. 'kept:names', first, '[' .. kind .. '\255', 'LIMIT', 0, 100)
  if #names == 0 then break end
  local rows = redis.call('HMGET', KEYS[1] .. 'kept:rows', unpack(names))
  for i, name in ipairs(names) do
    local expires = cmsgpack.unpack(rows[i])[3]
    if #found < 2 * limit and not (expires and expires <= now) then
      found[#found + 1] = name
      found[#found + 1] = rows[i]
    end
  end
  first = '(' .. names[#names]
end
return found
