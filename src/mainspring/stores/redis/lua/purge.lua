-- Remove runs and spans, a schedule's with its whole stream, in whose place a snapshot comes; remove what is left of
-- deleted schedules. What has changed since it was looked at stays for the next time.
-- ARGV: now or '', {{schedule or '', its row or '', snapshot or '', {id, ended, …}, {spans}}…}, {{schedule, row}…},
-- the front of a LogCompacted
-- {runs, events, spans, bodies, schedules, how many schedules changed meanwhile}

local now = clock(ARGV[1])
local groups, deleted = cmsgpack.unpack(ARGV[2]), cmsgpack.unpack(ARGV[3])
local at = pack(now)
local runs_gone, spans_gone, schedules_gone, changed_meanwhile = 0, 0, 0, 0
local bodies_seen = {}

local function unuse(body)
  if body then
    uses(body, -1)
    bodies_seen[body] = true
  end
end

local function remove_run(r)
  born(r)
  local id = r.id
  leave(r)
  zlist('namespaces', 'runs:', r.ns, id, false)
  if r.sid then
    zdel('of:' .. r.sid, id)
    if r.fire_key and hget('fire:' .. r.sid, r.fire_key) == id then
      hdel('fire:' .. r.sid, r.fire_key)
    end
  end
  local _, body = unpack_limit(r.head, 1, r.body_at)
  unuse(body)
  for i = 1, #r.trail, 6 do
    remove_event(struct.unpack('>I6', r.trail, i))
  end
  for _, member in ipairs(call('ZRANGEBYLEX', P .. 'noted', '[' .. id .. NUL, '(' .. id .. string.char(1))) do
    local seq = tonumber(sub(member, #id + 2))
    remove_event(seq)
    zdel('noted', member)
    zdel('notes', format('%d', seq))
  end
  hdel('run', id)
  tally(r.sid or '', r.fire_time or r.created, (r.origin == 'fire' and 'fire/' or 'adhoc/') .. r.state, 1)
  runs_gone = runs_gone + 1
end

local function remove_moves(id)
  for _, seq in ipairs(call('LRANGE', P .. 'moves:' .. id, 0, -1)) do
    remove_event(tonumber(seq))
  end
  doomed_keys[#doomed_keys + 1] = 'moves:' .. id
end

local function remove_schedule(id)
  local s = schedule_of(id)
  remove_moves(id)
  unuse(s.body)
  hdel('schedule', id)
  hdel('touched', id)
  for _, key in ipairs({ 'schedules', 'gone', 'due', 'held', 'unplanned' }) do
    zdel(key, id)
  end
  if s.app ~= '' then
    zdel('app:' .. s.app, id)
  end
  local mine = call('HGETALL', P .. 'tally:' .. id)
  for i = 1, #mine, 2 do
    hput('tally:', mine[i], format('%d', tonumber(hget('tally:', mine[i]) or 0) + tonumber(mine[i + 1])))
  end
  if #mine > 0 then
    on_roster(id)
    on_roster('')
    doomed_keys[#doomed_keys + 1] = 'tally:' .. id
  end
  local gate = gate_of('schedule:' .. id)
  if gate and gate.held == 0 then
    hdel('gate', gate.name)
    zdel('gates', gate.name)
  end
  schedules_gone = schedules_gone + 1
end

for _, group in ipairs(groups) do
  local id, row, snapshot, runs, spans = group[1], group[2], group[3], group[4], group[5]
  if row ~= '' and hget('schedule', id) ~= row then
    changed_meanwhile = changed_meanwhile + 1
  else
    for i = 1, #runs, 2 do
      local r = run_of(runs[i])
      if r and r.ended == runs[i + 1] then
        remove_run(r)
      end
    end
    for _, span in ipairs(spans) do
      local known = cmsgpack.unpack(sub(span, 34))
      tally(id, known[4], 'span/' .. known[6], known[5])
      zlist('spanned', 'span:', id, span, false)
      spans_gone = spans_gone + 1
    end
    if row ~= '' then
      remove_moves(id)
      push('moves:' .. id, format('%d', record(at .. pack(schedule_of(id).n) .. snapshot)))
    end
  end
end
for _, pair in ipairs(deleted) do
  local id = pair[1]
  if hget('schedule', id) == pair[2] and call('EXISTS', P .. 'of:' .. id) == 0 then
    remove_schedule(id)
  end
end
local bodies_gone = 0
for body in pairs(bodies_seen) do
  if tonumber(hget('uses', body) or 0) <= 0 then
    hdel('uses', body)
    if hget('body', body) then
      hdel('body', body)
      bodies_gone = bodies_gone + 1
    end
  end
end
if runs_gone + spans_gone + schedules_gone > 0 then
  table.sort(removed)
  local told = format(
    '{"through":%d,"streams":%d,"events":%d,"tallies":%d,"digest":"%s"}',
    removed[#removed] or 0,
    runs_gone,
    #removed,
    tallied,
    sub(redis.sha1hex(table.concat(removed, ',')), 1, 32)
  )
  local seq = record(at .. pack(nil) .. ARGV[4] .. pack(told))
  zput('notes', format('%d', seq), now)
  finish()
  call('SET', P .. 'compacted', format('%d', seq))
end
return { runs_gone, #removed, spans_gone, bodies_gone, schedules_gone, changed_meanwhile }
