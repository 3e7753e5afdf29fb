-- Plain successes by the shortest way: rows are cut and put together, not read and written.
-- ARGV: now or '', {ids, epochs, ready, crashes}, {offer, limit} or '', then for each run its rest and its event
-- {now, the places of those that need a closer look, claimed or false}. Of those nothing is written.

local now, runs = clock(ARGV[1]), cmsgpack.unpack(ARGV[2])
local ids, epochs, ready, crashes = runs[1], runs[2], runs[3], runs[4]
local found = call('HMGET', P .. 'run', unpack(ids))
local at = pack(now)
local new, log, ended, gone, of, keys, others = {}, {}, {}, {}, {}, {}, {}
local seq = log_end()
local first, block = seq, floor((seq + 1) / BLOCK)
local events = {}
log[block] = events
for i = 1, #ids do
  local row, id = found[i], ids[i]
  local flags, state, n, epoch, attempt, head, ident, body_at, owner, trail, due_at, started, created, _
  if row then
    flags, state, _, n, epoch, attempt, head, ident, body_at, owner, trail, due_at, _, started, _, _, created =
      struct.unpack(HEADER, row)
  end
  if state ~= RUNNING or epoch ~= epochs[i] or flags % 2 == HAS_GATES or flags >= HAS_CANCEL then
    others[#others + 1] = i
  else
    local o = HEADER_BYTES + owner
    local t = o + trail
    n, seq = n + 1, seq + 1
    new[#new + 1] = id
    new[#new + 1] = struct.pack(
      HEADER, flags, SUCCEEDED, crashes[i], n, epoch, attempt, head, ident, body_at, 0, trail + 6, due_at, ready[i],
      started, now, NEVER, created
    ) .. sub(row, o + 1, t) .. struct.pack('>I6', seq) .. sub(row, t + 1, t + head) .. ARGV[2 * i + 2]
    if floor(seq / BLOCK) ~= block then
      block = floor(seq / BLOCK)
      events = {}
      log[block] = events
    end
    events[#events + 1] = format('%d', seq)
    events[#events + 1] = at .. pack(n) .. ARGV[2 * i + 3]
    ended[#ended + 1] = now
    ended[#ended + 1] = id
    owner = sub(row, HEADER_BYTES + 1, o)
    local own = gone[owner]
    if not own then
      own = {}
      gone[owner] = own
    end
    own[#own + 1] = id
    if flags > 0 then
      local _, _, ns, sid, _, _, _, _, _, _, _, _, _, key = unpack_limit(row, 13, t)
      if sid then
        of[#of + 1] = sid
        of[#of + 1] = id
      end
      if key then
        keys[#keys + 1] = ns .. NUL .. key
        keys[#keys + 1] = id
      end
    end
  end
end
if #new > 0 then
  call('DEL', P .. 'none') -- what is under way goes on, be memory short or not
  call('INCRBY', P .. 'seq', seq - first)
  last_seq, first_seq = seq, seq
  call('HSET', P .. 'run', unpack(new))
  for number, values in pairs(log) do
    if #values > 0 then
      local name = format('%d', number)
      call('HSET', P .. 'log:' .. name, unpack(values))
      call('ZADD', P .. 'blocks', number, name)
    end
  end
  call('ZADD', P .. 'ended', unpack(ended))
  for owner, members in pairs(gone) do
    call('ZREM', P .. 'own:' .. owner, unpack(members))
    if call('EXISTS', P .. 'own:' .. owner) == 0 then
      call('SREM', P .. 'owners', owner)
    end
  end
  for i = 1, #of, 2 do
    call('ZREM', P .. 'open:' .. of[i], of[i + 1])
  end
  for i = 1, #keys, 2 do
    if call('HGET', P .. 'unique', keys[i]) == keys[i + 1] then
      call('HDEL', P .. 'unique', keys[i])
    end
  end
end
local claimed = false
if ARGV[3] ~= '' and #others == 0 then
  local wish = cmsgpack.unpack(ARGV[3])
  claimed = claim(now, wish[1], wish[2], {})
end
return { now, others, claimed }
