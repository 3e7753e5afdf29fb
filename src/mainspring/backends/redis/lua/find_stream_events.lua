-- Find the events of one run, including its notes (events that change no row), or the own events of one schedule.
-- KEYS[1]: prefix. ARGV: 'run' or 'schedule', id. Returns {number, event, …} in no order.
local id, seqs = ARGV[2], {}
if ARGV[1] == 'run' then
  local r = load_run(id)
  for i = 1, r and #r.trail or 0, 6 do
    seqs[#seqs + 1] = struct.unpack('>I6', r.trail, i)
  end
  for _, member in ipairs(call('ZRANGEBYLEX', P .. 'noted', '[' .. id .. NUL, '(' .. id .. string.char(1))) do
    seqs[#seqs + 1] = tonumber(sub(member, #id + 2))
  end
else
  for _, seq in ipairs(call('LRANGE', P .. 'moves:' .. id, 0, -1)) do
    seqs[#seqs + 1] = tonumber(seq)
  end
end
local found = {}
for _, seq in ipairs(seqs) do
  local event = hget(block_key(seq), format('%d', seq))
  if event then
    found[#found + 1] = format('%d', seq)
    found[#found + 1] = event
  end
end
return found
