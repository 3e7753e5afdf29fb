-- The one write. ARGV: now or '', changes, {offer, limit} or ''
-- A change: kind, guarded id, its own id, what the guard asks, new values, runs, events, payloads, gates, touches,
-- releases, spans (rows.py packs them). Answers: n where accepted, else {1 refused | 2 repeated, n, row or false}.

local NOTHING, RUN_LEASE, RUN_AT, RUN_ABSENT, SCHEDULE_AT, SCHEDULE_ABSENT = 0, 1, 2, 3, 4, 5
local RUN_EVENT, SCHEDULE_EVENT, NOTE = 1, 2, 3

local now = clock(ARGV[1])
local at, instant_now = pack(now), struct.pack('>i8', now)
local ENDED_AT = 56 -- where a header says when its run ended
local changes = cmsgpack.unpack(ARGV[2])
local recent = now - 3600000

local function wrote(seq, change)
  local event = hget(block_of(seq), format('%d', seq))
  if not event then
    return false
  end
  local _, _, _, by = unpack_limit(event, 3, 0)
  return by == change
end

local function on_trail(id, change)
  local r = id and run_of(id)
  for i = 1, r and #r.trail or 0, 6 do
    if wrote(struct.unpack('>I6', r.trail, i), change) then
      return true
    end
  end
  return false
end

local function among_moves(id, change)
  for _, seqs in ipairs({ call('LRANGE', P .. 'moves:' .. id, 0, -1), lists['moves:' .. id] or {} }) do
    for _, seq in ipairs(seqs) do
      if wrote(tonumber(seq), change) then
        return true
      end
    end
  end
  return false
end

local function no(row, is_run, c)
  if not row then
    return { 1, 0, false }
  end
  local said = is_run and on_trail(row.id, c[3]) or (not is_run and among_moves(row.id, c[3]))
  for _, new in ipairs(c[6] or {}) do
    said = said or on_trail(new[1], c[3])
  end
  return { said and 2 or 1, row.n, hget(is_run and 'run' or 'schedule', row.id) }
end

-- nil when the guard holds, else the answer.
local function refused(c)
  local kind, id, asked = c[1], c[2], c[4]
  if kind == RUN_LEASE then
    local r = run_of(id)
    if not r or r.state ~= 'running' or r.epoch ~= asked then
      return no(r, true, c)
    end
  elseif kind == RUN_AT then
    local r = run_of(id)
    local values = c[5]
    if not r or r.n ~= asked then
      return no(r, true, c)
    end
    if values[14] and not ENDED[values[1]] and ENDED[r.state] and hget('unique', values[14]) then
      return no(r, true, c)
    end
  elseif kind == RUN_ABSENT then
    local r = run_of(id) or (asked and run_of(hget('unique', asked) or ''))
    if r then
      return no(r, true, c)
    end
  elseif kind == SCHEDULE_AT then
    local s = schedule_of(id)
    if not s or s.revision ~= asked[1] or s.cursor ~= asked[2] or s.n ~= asked[3] then
      return no(s, false, c)
    end
  elseif kind == SCHEDULE_ABSENT then
    local s = schedule_of(id) or schedule_of(hget('names', asked) or '')
    if s then
      return no(s, false, c)
    end
  else
    local said = call('ZSCORE', P .. 'changes', c[3])
    for _, new in ipairs(c[6] or {}) do
      said = said or on_trail(new[1], c[3])
    end
    return said and { 2, 0, false } or nil
  end
end

-- values: state, ready, failures, crashes, reason, result, error, began, ms, dead, moves, cancel, body, unique key
local function move_run(c)
  local r, v, id = run_of(c[2]), c[5], c[2]
  local was_open = not ENDED[r.state]
  leave(r)
  r.state, r.ready, r.failures, r.crashes = v[1], v[2], v[3], v[4]
  r.reason, r.result, r.error, r.began, r.ms, r.dead = v[5], v[6], v[7], v[8], v[9], v[10]
  if c[1] == RUN_AT then
    r.cancel = v[12]
    local _, body = unpack_limit(r.head, 1, r.body_at)
    if body ~= v[13] then
      uses(body, -1)
      uses(v[13], 1)
      set_body(r, v[13])
    end
  end
  if r.state ~= 'running' then
    r.owner, r.lease, r.parked, r.progress = nil, nil, nil, nil
  end
  if not ENDED[r.state] then
    r.ended = nil
  elseif was_open then
    r.ended = now
  end
  return r
end

-- new: id, header up to its time of birth, owner, head and rest, moves, ended?, ns, schedule, fire key, payload,
-- queue where it simply waits, ready
local function insert(new, trail)
  local id, front = new[1], new[2]
  if new[6] then
    front = sub(front, 1, ENDED_AT) .. instant_now .. sub(front, ENDED_AT + 9)
  end
  rows[id] = nil
  hput('run', id, front .. instant_now .. new[3] .. trail .. new[4])
  bear(id, new[7], new[8], new[9], new[10])
  if new[11] then
    zlist('queues', 'queue:', new[11], id, new[12])
  else
    enter(run_of(id))
  end
end

local function is_new(new)
  return not hget('run', new[1]) and not (new[8] and new[9] and hget('fire:' .. new[8], new[9]))
end

-- values: revision, cursor, state, next_at, ns, name, app, payload, the schedule, moves
local function move_schedule(c)
  local id, v, old = c[2], c[5], schedule_of(c[5][11])
  local moves = v[10]
  local s = {
    id = v[11],
    n = (old and old.n or 0) + moves,
    revision = v[1],
    cursor = v[2],
    created = old and old.created or now,
    updated = (moves > 0 or not old) and now or old.updated,
    state = v[3],
    next_at = v[4],
    ns = v[5],
    name = v[6],
    app = v[7],
    body = v[8],
    rest = v[9],
  }
  save_schedule(s, old)
  if c[1] == SCHEDULE_AT and tonumber(hget('touched', id) or 0) == c[4][4] then
    hdel('touched', id)
  end
  return s.n
end

local function note(seq, run)
  zput('notes', format('%d', seq), now)
  if run then
    zput('noted', run .. NUL .. format('%016d', seq), 0)
  end
end

-- The events of a change in their order; r is the guarded run, n the number its schedule has come to.
local function tell(c, r, n, trails)
  local own = 0
  for _, e in ipairs(c[7] or {}) do
    if e[1] == SCHEDULE_EVENT and e[2] == c[2] then
      own = own + 1
    end
  end
  local numbers = {}
  if n then
    numbers[c[2]] = n - own
  end
  for _, e in ipairs(c[7] or {}) do
    local kind, id, rest = e[1], e[2], e[3]
    if kind == RUN_EVENT then
      local trail = trails[id]
      if trail then
        trail[#trail + 1] = struct.pack('>I6', record(at .. pack(#trail + 1) .. rest))
      elseif r and id == r.id then
        move(r, at, rest)
      end
    elseif kind == SCHEDULE_EVENT then
      numbers[id] = (numbers[id] or 0) + 1
      push('moves:' .. id, format('%d', record(at .. pack(numbers[id]) .. rest)))
    else
      note(record(at .. pack(nil) .. rest), id)
    end
  end
end

local function apply(c)
  local answer = refused(c)
  if answer then
    return answer
  end
  local kind = c[1]
  for _, body in ipairs(c[8] or {}) do
    if not hget('uses', body[1]) then -- it is named after what it says: writing it again changes nothing
      hput('body', body[1], body[2])
    end
  end
  for _, gate in ipairs(c[9] or {}) do
    local g = gate_of(gate[1]) or { name = gate[1], held = gate[3], closed = gate[4] }
    g.max = gate[2]
    save_gate(g)
  end
  local r, n
  if kind == RUN_LEASE or kind == RUN_AT then
    r = move_run(c)
  elseif kind == SCHEDULE_AT or kind == SCHEDULE_ABSENT then
    n = move_schedule(c)
  end
  local trails, newborn = {}, {}
  local candidates = c[6] or {}
  if kind == RUN_ABSENT then
    newborn[1] = c[5]
    trails[c[5][1]] = {}
  end
  for _, new in ipairs(candidates) do
    if not trails[new[1]] and is_new(new) then
      newborn[#newborn + 1] = new
      trails[new[1]] = {}
    end
  end
  tell(c, r, n, trails)
  for _, new in ipairs(newborn) do
    insert(new, table.concat(trails[new[1]]))
  end
  if r then
    enter(r)
    save_run(r)
  end
  for _, span in ipairs(c[12] or {}) do
    zlist('spanned', 'span:', span[1], span[3] .. format('%016d', log_end()) .. span[4], span[2])
  end
  for _, id in ipairs(c[10] or {}) do
    if hget('schedule', id) then
      hput('touched', id, tonumber(hget('touched', id) or 0) + 1)
    end
  end
  for _, name in ipairs(c[11] or {}) do
    local g = gate_of(name)
    if g then
      g.held = math.max(0, g.held - 1)
      save_gate(g)
    end
  end
  if kind == RUN_AT then
    return r.n
  elseif kind == RUN_ABSENT then
    return c[5][5]
  elseif kind == RUN_LEASE then
    return 0
  elseif kind == NOTHING and #candidates == 0 then
    zput('changes', c[3], now)
  end
  return n or 0
end

local runs, bodies, grows = {}, {}, false
for _, c in ipairs(changes) do
  for _, body in ipairs(c[8] or {}) do
    bodies[#bodies + 1] = body[1]
  end
  if c[1] == RUN_LEASE or c[1] == RUN_AT or c[1] == RUN_ABSENT then
    runs[#runs + 1] = c[2]
  end
  for _, new in ipairs(c[6] or {}) do
    runs[#runs + 1] = new[1]
    grows = true
  end
  grows = grows or c[1] == RUN_ABSENT or c[1] == SCHEDULE_ABSENT
end
hload('run', runs)
hload('uses', bodies)
local answers = {}
for i, c in ipairs(changes) do
  answers[i] = apply(c)
end
flush(grows)
if call('EXISTS', P .. 'changes') == 1 then
  call('ZREMRANGEBYSCORE', P .. 'changes', '-inf', recent)
end
local claimed = false
if ARGV[3] ~= '' then
  local wish = cmsgpack.unpack(ARGV[3])
  claimed = claim(now, wish[1], wish[2], {})
end
return { now, answers, claimed }
