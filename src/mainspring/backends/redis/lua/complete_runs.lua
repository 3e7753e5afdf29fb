-- Fast path of apply.lua: complete runs that succeeded under their lease, then claim runs, if requested.
-- It cuts and joins the bytes of rows and does not decode them.
-- KEYS[1]: prefix. ARGV: now or '', {ids, epochs, ready times, numbers of crashes}, {offer, limit} or '', then for each
-- run the rest of its row and its event
-- Returns {now, positions of changes for which nothing was written, claim or false}. Such a change needs apply.lua: its
-- lease is not held, or its run has gates or a cancel request. If there is such a change, nothing is claimed.

local now, runs = current_time(ARGV[1]), cmsgpack.unpack(ARGV[2])
local ids, epochs, ready, crashes = runs[1], runs[2], runs[3], runs[4]
local found = call('HMGET', P .. 'run', unpack(ids))
local at = pack(now)
local new_rows, blocks, ended, ended_by_owner, of_schedules, keys, unwritten = {}, {}, {}, {}, {}, {}, {}
local seq = log_end()
local first_seq_here, block = seq, floor((seq + 1) / BLOCK_EVENTS)
local events = {}
blocks[block] = events
for i = 1, #ids do
  local row, id = found[i], ids[i]
  local flags, state, n, epoch, attempt, head, ident, body_at, owner, trail, due_at, started, created, _
  if row then
    flags, state, _, n, epoch, attempt, head, ident, body_at, owner, trail, due_at, _, started, _, _, created =
      struct.unpack(HEADER, row)
  end
  if state ~= RUNNING or epoch ~= epochs[i] or flags % 2 == HAS_GATES or flags >= HAS_CANCEL then
    unwritten[#unwritten + 1] = i
  else
    local owner_end = HEADER_BYTES + owner
    local trail_end = owner_end + trail
    n, seq = n + 1, seq + 1
    new_rows[#new_rows + 1] = id
    new_rows[#new_rows + 1] = struct.pack(
      HEADER, flags, SUCCEEDED, crashes[i], n, epoch, attempt, head, ident, body_at, 0, trail + 6, due_at, ready[i],
      started, now, NEVER, created
    ) .. sub(row, owner_end + 1, trail_end) .. struct.pack('>I6', seq)
      .. sub(row, trail_end + 1, trail_end + head) .. ARGV[2 * i + 2]
    if floor(seq / BLOCK_EVENTS) ~= block then
      block = floor(seq / BLOCK_EVENTS)
      events = {}
      blocks[block] = events
    end
    events[#events + 1] = format('%d', seq)
    events[#events + 1] = at .. pack(n) .. ARGV[2 * i + 3]
    ended[#ended + 1] = now
    ended[#ended + 1] = id
    owner = sub(row, HEADER_BYTES + 1, owner_end)
    local own = ended_by_owner[owner]
    if not own then
      own = {}
      ended_by_owner[owner] = own
    end
    own[#own + 1] = id
    if flags > 0 then
      local _, _, ns, sid, _, _, _, _, _, _, _, _, _, key = unpack_limit(row, 13, trail_end)
      if sid then
        of_schedules[#of_schedules + 1] = sid
        of_schedules[#of_schedules + 1] = id
      end
      if key then
        keys[#keys + 1] = ns .. NUL .. key
        keys[#keys + 1] = id
      end
    end
  end
end
if #new_rows > 0 then
  call('DEL', P .. 'none') -- a first write: the server then refuses nothing more for want of memory
  call('INCRBY', P .. 'seq', seq - first_seq_here)
  last_seq, first_seq = seq, seq
  call('HSET', P .. 'run', unpack(new_rows))
  for number, values in pairs(blocks) do
    if #values > 0 then
      local name = format('%d', number)
      call('HSET', P .. 'log:' .. name, unpack(values))
      call('ZADD', P .. 'blocks', number, name)
    end
  end
  call('ZADD', P .. 'ended', unpack(ended))
  for owner, members in pairs(ended_by_owner) do
    call('ZREM', P .. 'own:' .. owner, unpack(members))
    if call('EXISTS', P .. 'own:' .. owner) == 0 then
      call('SREM', P .. 'owners', owner)
    end
  end
  for i = 1, #of_schedules, 2 do
    call('ZREM', P .. 'open:' .. of_schedules[i], of_schedules[i + 1])
  end
  for i = 1, #keys, 2 do
    if call('HGET', P .. 'unique', keys[i]) == keys[i + 1] then
      call('HDEL', P .. 'unique', keys[i])
    end
  end
end
local claimed = false
if ARGV[3] ~= '' and #unwritten == 0 then
  local request = cmsgpack.unpack(ARGV[3])
  claimed = claim(now, request[1], request[2], {})
end
return { now, unwritten, claimed }
