-- Write one page of a copy of another store, if the log ends where the page begins.
-- KEYS[1]: prefix. ARGV: number of the last event before the page, runs {{id, row, trail of the page's events}…},
-- schedules {{id, row, count of touches}…}, events {{number, event, run or '', schedule or '', 1 if a note, at}…},
-- spans {{schedule, through, member}…}, payloads {{id, text}…}, gates {{name, max, held, closed_until}…}, tallies
-- {{schedule or '', day NUL outcome, count}…}, number of the newest LogCompacted event or '', now or '',
-- leases {{name, owner, epoch, ms until the term ends, renewed_at, data or nil}…}
-- schedules whose spans are cut {{schedule, instant}…}
-- Returns 1; or 0, with nothing written, if the last event of the log has another number than the first argument.

if log_end() ~= tonumber(ARGV[1]) then
  return 0
end
local function unpack_arg(i)
  return cmsgpack.unpack(ARGV[i])
end

for _, body in ipairs(unpack_arg(6)) do
  hput('body', body[1], body[2])
end
for _, new in ipairs(unpack_arg(2)) do
  local id, row, trail = new[1], new[2], new[3]
  local old = load_run(id)
  if old then
    unindex_run(old)
    local _, body = unpack_limit(old.head, 1, old.body_at)
    add_uses(body, -1)
    load_head(old)
    if old.key and hget('unique', old.ns .. NUL .. old.key) == id then
      hdel('unique', old.ns .. NUL .. old.key)
    end
    if old.sid then
      zdel('open:' .. old.sid, id)
    end
  end
  local r = decode_run(id, row)
  r.trail = (old and old.trail or '') .. trail
  load_head(r)
  index_new_run(id, r.ns, r.sid, r.fire_key, r.body)
  index_run(r)
  save_run(r)
end
for _, new in ipairs(unpack_arg(3)) do
  local id, old = new[1], load_schedule(new[1])
  local s = { id = id }
  local rest
  rest, s.n, s.revision, s.cursor, s.created, s.updated, s.state, s.next_at, s.ns, s.name, s.app, s.body =
    unpack_limit(new[2], 11, 0)
  s.rest = sub(new[2], rest + 1)
  save_schedule(s, old)
  if new[3] > 0 then
    hput('touched', id, new[3])
  else
    hdel('touched', id)
  end
end
local last = log_end()
local blocks = {}
for _, new in ipairs(unpack_arg(4)) do
  local seq = new[1]
  local name = format('%d', seq)
  hput(block_key(seq), name, new[2])
  blocks[floor(seq / BLOCK_EVENTS)] = true
  last = math.max(last, seq)
  if new[5] == 1 then
    zput('notes', name, new[6])
    if new[3] ~= '' then
      zput('noted', new[3] .. NUL .. format('%016d', seq), 0)
    end
  elseif new[3] == '' then
    push('moves:' .. new[4], name)
  end
end
for _, cut in ipairs(unpack_arg(12)) do
  cut_spans(cut[1], cut[2])
end
for _, span in ipairs(unpack_arg(5)) do
  zput_registered('spanned', 'span:', span[1], span[3], span[2])
end
for _, gate in ipairs(unpack_arg(7)) do
  save_gate({ name = gate[1], max = gate[2], held = gate[3], closed = gate[4] })
end
for _, row in ipairs(unpack_arg(8)) do
  hput('tally:' .. row[1], row[2], format('%d', row[3]))
  registries.tallied = registries.tallied or {}
  registries.tallied[row[1]] = 'tally:' .. row[1]
end
flush()
for block in pairs(blocks) do
  call('ZADD', P .. 'blocks', block, format('%d', block))
end
call('SET', P .. 'seq', format('%d', last))
if ARGV[9] ~= '' then
  call('SET', P .. 'compacted', ARGV[9])
end
local lease_now = current_time(ARGV[10])
for _, lease in ipairs(unpack_arg(11)) do -- the row of a lease is as in lease.lua
  local name, left = lease[1], lease[4]
  call('HSET', P .. 'lease:rows', name,
    cmsgpack.pack({ lease[2], lease[3], lease_now + left, lease[5], lease[6] or false, left > 0 }))
  call('ZADD', P .. 'lease:renewed', lease[5], name)
  call('ZADD', P .. 'lease:names', 0, name)
end
return 1
