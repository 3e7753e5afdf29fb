-- Second call of retention: remove the runs, spans and deleted schedules that tidy.lua returned. The events of a
-- schedule that stays are replaced by one snapshot. A schedule whose row has changed since tidy.lua read it is left for
-- the next purge, with its runs and spans.
-- KEYS[1]: prefix. ARGV: now or '', groups, deleted schedules {{schedule, row}…}, the encoded LogCompacted event up to
-- its data
-- A group: {schedule or '', its row or '', snapshot or '', {run id, ended_at, …}, {span…}}
-- Returns {runs, events, spans, payloads, schedules removed, schedules that changed meanwhile}.

local now = current_time(ARGV[1])
local groups, deleted = cmsgpack.unpack(ARGV[2]), cmsgpack.unpack(ARGV[3])
local at = pack(now)
local runs_gone, spans_gone, schedules_gone, changed_meanwhile = 0, 0, 0, 0
local released_bodies = {}

-- Count one use less of a payload. At the end of the script, the payload is removed if no use is left.
local function release_body(body)
  if body then
    add_uses(body, -1)
    released_bodies[body] = true
  end
end

-- Remove a run with its events, notes and log, and count it in a tally.
local function remove_run(r)
  load_head(r)
  local id = r.id
  unindex_run(r)
  zput_registered('namespaces', 'runs:', r.ns, id, false)
  if r.sid then
    zdel('of:' .. r.sid, id)
    if r.fire_key and hget('fire:' .. r.sid, r.fire_key) == id then
      hdel('fire:' .. r.sid, r.fire_key)
    end
  end
  local _, body = unpack_limit(r.head, 1, r.body_at)
  release_body(body)
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
  remove_log(id)
  add_tally(r.sid or '', r.fire_time or r.created, (r.origin == 'fire' and 'fire/' or 'adhoc/') .. r.state, 1)
  runs_gone = runs_gone + 1
end

-- Remove a schedule's own events.
local function remove_schedule_events(id)
  for _, seq in ipairs(call('LRANGE', P .. 'moves:' .. id, 0, -1)) do
    remove_event(tonumber(seq))
  end
  deleted_keys[#deleted_keys + 1] = 'moves:' .. id
end

-- Remove a schedule, and add its tallies to those of runs without a schedule.
local function remove_schedule(id)
  local s = load_schedule(id)
  remove_schedule_events(id)
  release_body(s.body)
  hdel('schedule', id)
  hdel('touched', id)
  for _, key in ipairs({ 'schedules', 'gone', 'due', 'held', 'unplanned' }) do
    zdel(key, id)
  end
  if s.app ~= '' then
    zdel('app:' .. s.app, id)
  end
  local tallies = call('HGETALL', P .. 'tally:' .. id)
  for i = 1, #tallies, 2 do
    hput('tally:', tallies[i], format('%d', tonumber(hget('tally:', tallies[i]) or 0) + tonumber(tallies[i + 1])))
  end
  if #tallies > 0 then
    register_tally(id)
    register_tally('')
    deleted_keys[#deleted_keys + 1] = 'tally:' .. id
  end
  local gate = load_gate('schedule:' .. id)
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
      local r = load_run(runs[i])
      if r and r.ended == runs[i + 1] then
        remove_run(r)
      end
    end
    for _, span in ipairs(spans) do
      local fields = cmsgpack.unpack(sub(span, 34))
      add_tally(id, fields[4], 'span/' .. fields[6], fields[5])
      zput_registered('spanned', 'span:', id, span, false)
      spans_gone = spans_gone + 1
    end
    if row ~= '' then
      remove_schedule_events(id)
      push('moves:' .. id, format('%d', append_event(at .. pack(load_schedule(id).n) .. snapshot)))
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
for body in pairs(released_bodies) do
  if tonumber(hget('uses', body) or 0) <= 0 then
    hdel('uses', body)
    if hget('body', body) then
      hdel('body', body)
      bodies_gone = bodies_gone + 1
    end
  end
end
if runs_gone + spans_gone + schedules_gone > 0 then
  table.sort(removed_seqs)
  local note_data = format(
    '{"through":%d,"streams":%d,"events":%d,"tallies":%d,"digest":"%s"}',
    removed_seqs[#removed_seqs] or 0,
    runs_gone,
    #removed_seqs,
    tally_count,
    sub(redis.sha1hex(table.concat(removed_seqs, ',')), 1, 32)
  )
  local seq = append_event(at .. pack(nil) .. ARGV[4] .. pack(note_data))
  zput('notes', format('%d', seq), now)
  flush_removals()
  call('SET', P .. 'compacted', format('%d', seq))
end
return { runs_gone, #removed_seqs, spans_gone, bodies_gone, schedules_gone, changed_meanwhile }
