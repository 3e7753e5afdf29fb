-- Check and write a batch of changes, each all or nothing; then claim runs, if requested.
-- KEYS[1]: prefix. ARGV: now or '', changes, {offer, limit} or ''
-- A change (packed by apply.py): kind of guard, guarded id, change id, expected value of the guard, new values, runs,
-- events, payloads, gates, touches, releases, spans, {schedule, instant} whose spans are cut there.
-- Returns {now, answers, claim or false}. The answer to an accepted change is the number of events of the guarded row
-- (0 under a lease and without a guard). The answer to any other change is {1 (refused) or 2 (repeated), number of
-- events of the row that refused it, this row or false}.

local NOTHING, RUN_LEASE, RUN_AT, RUN_ABSENT, SCHEDULE_AT, SCHEDULE_ABSENT = 0, 1, 2, 3, 4, 5
local RUN_EVENT, SCHEDULE_EVENT, NOTE = 1, 2, 3

local now = current_time(ARGV[1])
local at, instant_now = pack(now), struct.pack('>i8', now)
local ENDED_AT = 56 -- offset of the time of the run's end in the header
local changes = cmsgpack.unpack(ARGV[2])
local hour_ago = now - 3600000 -- for an hour, the ids of changes with neither guard nor runs are stored

-- Return true if the event with this number was written by the change with this id.
local function is_event_of(seq, change)
  local event = hget(block_key(seq), format('%d', seq))
  if not event then
    return false
  end
  local _, _, _, change_id = unpack_limit(event, 3, 0)
  return change_id == change
end

-- Return true if an event of this run was written by the change with this id.
local function run_has_change(id, change)
  local r = id and load_run(id)
  for i = 1, r and #r.trail or 0, 6 do
    if is_event_of(struct.unpack('>I6', r.trail, i), change) then
      return true
    end
  end
  return false
end

-- Return true if an event of this schedule was written by the change with this id.
local function schedule_has_change(id, change)
  for _, seqs in ipairs({ call('LRANGE', P .. 'moves:' .. id, 0, -1), list_appends['moves:' .. id] or {} }) do
    for _, seq in ipairs(seqs) do
      if is_event_of(tonumber(seq), change) then
        return true
      end
    end
  end
  return false
end

-- Return the answer to the change `c`, whose guard failed: repeated if this change is stored already, else refused.
-- row: the decoded row that refused the change, or nil; is_run: true if the row is a run, false if it is a schedule.
local function refusal(row, is_run, c)
  if not row then
    return { 1, 0, false }
  end
  local is_repeated = is_run and run_has_change(row.id, c[3]) or (not is_run and schedule_has_change(row.id, c[3]))
  for _, new in ipairs(c[6] or {}) do
    is_repeated = is_repeated or run_has_change(new[1], c[3])
  end
  return { is_repeated and 2 or 1, row.n, hget(is_run and 'run' or 'schedule', row.id) }
end

-- Check the guard of the change `c`: return nil if it holds, else the answer to the change.
local function check_guard(c)
  local kind, id, expected = c[1], c[2], c[4]
  if kind == RUN_LEASE then
    local r = load_run(id)
    if not r or r.state ~= 'running' or r.epoch ~= expected then
      return refusal(r, true, c)
    end
  elseif kind == RUN_AT then
    local r = load_run(id)
    local values = c[5]
    if not r or r.n ~= expected then
      return refusal(r, true, c)
    end
    if values[14] and not ENDED[values[1]] and ENDED[r.state] and hget('unique', values[14]) then
      return refusal(r, true, c)
    end
  elseif kind == RUN_ABSENT then
    local r = load_run(id) or (expected and load_run(hget('unique', expected) or ''))
    if r then
      return refusal(r, true, c)
    end
  elseif kind == SCHEDULE_AT then
    local s = load_schedule(id)
    if not s or s.revision ~= expected[1] or s.cursor ~= expected[2] or s.n ~= expected[3] then
      return refusal(s, false, c)
    end
    if expected[5] and hget('names', expected[5]) then -- the change renames the schedule, and the name is taken
      return refusal(s, false, c)
    end
  elseif kind == SCHEDULE_ABSENT then
    local s = load_schedule(id) or load_schedule(hget('names', expected) or '')
    if s then
      return refusal(s, false, c)
    end
  else
    local is_repeated = call('ZSCORE', P .. 'changes', c[3])
    for _, new in ipairs(c[6] or {}) do
      is_repeated = is_repeated or run_has_change(new[1], c[3])
    end
    return is_repeated and { 2, 0, false } or nil
  end
end

-- Set the new values of the change `c` on its guarded run, remove the run from its indexes, and return it. The caller
-- indexes and saves the run.
-- values: state, ready, failures, crashes, reason, result, error, began, ms, dead, nil, cancel, body, unique key
local function update_run(c)
  local r, v, id = load_run(c[2]), c[5], c[2]
  local was_open = not ENDED[r.state]
  unindex_run(r)
  r.state, r.ready, r.failures, r.crashes = v[1], v[2], v[3], v[4]
  r.reason, r.result, r.error, r.began, r.ms, r.dead = v[5], v[6], v[7], v[8], v[9], v[10]
  if c[1] == RUN_AT then
    r.cancel = v[12]
    local _, body = unpack_limit(r.head, 1, r.body_at)
    if body ~= v[13] then
      add_uses(body, -1)
      add_uses(v[13], 1)
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

-- Insert a run. new: id, header without created_at, owner, head and rest, number of its events, true if it has ended,
-- namespace, schedule, fire key, payload, queue if the run only waits for a worker, ready time. trail: the packed log
-- numbers of its events.
local function insert_run(new, trail)
  local id, front = new[1], new[2]
  if new[6] then
    front = sub(front, 1, ENDED_AT) .. instant_now .. sub(front, ENDED_AT + 9)
  end
  run_cache[id] = nil
  hput('run', id, front .. instant_now .. new[3] .. trail .. new[4])
  index_new_run(id, new[7], new[8], new[9], new[10])
  if new[11] then
    zput_registered('queues', 'queue:', new[11], id, new[12])
  else
    index_run(load_run(id))
  end
end

-- Return false if the run exists, or its schedule has a run with its fire key. new: as for `insert_run`.
local function can_insert(new)
  return not hget('run', new[1]) and not (new[8] and new[9] and hget('fire:' .. new[8], new[9]))
end

-- Write the schedule of the change `c`; return the number of the schedule's last event.
-- values: revision, cursor, state, next_at, namespace, name, app, payload, encoded schedule, number of events, id
local function write_schedule(c)
  local id, v, old = c[2], c[5], load_schedule(c[5][11])
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

-- Index a note, an event that changes no row, by its time; if `run` is given, also under this run.
local function index_note(seq, run)
  zput('notes', format('%d', seq), now)
  if run then
    zput('noted', run .. NUL .. format('%016d', seq), 0)
  end
end

-- Append the events of the change `c` to the log in their order. r: the guarded run, or nil; n: the number of the
-- guarded schedule's last event after this change, or nil; trails: for each run that this change inserts, run id →
-- table to which the numbers of its events are added. Events of runs that should be inserted but exist already are left
-- out.
local function append_events(c, r, n, trails)
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
        trail[#trail + 1] = struct.pack('>I6', append_event(at .. pack(#trail + 1) .. rest))
      elseif r and id == r.id then
        append_run_event(r, at, rest)
      end
    elseif kind == SCHEDULE_EVENT then
      numbers[id] = (numbers[id] or 0) + 1
      push('moves:' .. id, format('%d', append_event(at .. pack(numbers[id]) .. rest)))
    else
      index_note(append_event(at .. pack(nil) .. rest), id)
    end
  end
end

-- Check the change `c` and collect its writes for `flush`; return the answer to it.
local function apply_change(c)
  local answer = check_guard(c)
  if answer then
    return answer
  end
  local kind = c[1]
  for _, body in ipairs(c[8] or {}) do
    if not hget('uses', body[1]) then -- the id is a hash of the content, so an existing payload is equal
      hput('body', body[1], body[2])
    end
  end
  for _, gate in ipairs(c[9] or {}) do
    local g = load_gate(gate[1]) or { name = gate[1], held = gate[3], closed = gate[4] }
    g.max = gate[2]
    save_gate(g)
  end
  local r, n
  if kind == RUN_LEASE or kind == RUN_AT then
    r = update_run(c)
  elseif kind == SCHEDULE_AT or kind == SCHEDULE_ABSENT then
    n = write_schedule(c)
  end
  local trails, inserted = {}, {}
  local planned = c[6] or {}
  if kind == RUN_ABSENT then
    inserted[1] = c[5]
    trails[c[5][1]] = {}
  end
  for _, new in ipairs(planned) do
    if not trails[new[1]] and can_insert(new) then
      inserted[#inserted + 1] = new
      trails[new[1]] = {}
    end
  end
  append_events(c, r, n, trails)
  for _, new in ipairs(inserted) do
    insert_run(new, table.concat(trails[new[1]]))
  end
  if r then
    index_run(r)
    save_run(r)
  end
  if c[13] then
    cut_spans(c[13][1], c[13][2])
  end
  for _, span in ipairs(c[12] or {}) do
    zput_registered('spanned', 'span:', span[1], span[3] .. format('%016d', log_end()) .. span[4], span[2])
  end
  for _, id in ipairs(c[10] or {}) do
    if hget('schedule', id) then
      hput('touched', id, tonumber(hget('touched', id) or 0) + 1)
    end
  end
  for _, name in ipairs(c[11] or {}) do
    local g = load_gate(name)
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
  elseif kind == NOTHING and #planned == 0 then
    zput('changes', c[3], now)
  end
  return n or 0
end

local runs, bodies, refusable = {}, {}, false
for _, c in ipairs(changes) do
  for _, body in ipairs(c[8] or {}) do
    bodies[#bodies + 1] = body[1]
  end
  if c[1] == RUN_LEASE or c[1] == RUN_AT or c[1] == RUN_ABSENT then
    runs[#runs + 1] = c[2]
  end
  for _, new in ipairs(c[6] or {}) do
    runs[#runs + 1] = new[1]
    refusable = true
  end
  refusable = refusable or c[1] == RUN_ABSENT or c[1] == SCHEDULE_ABSENT
end
hload('run', runs)
hload('uses', bodies)
local answers = {}
for i, c in ipairs(changes) do
  answers[i] = apply_change(c)
end
flush(refusable)
if call('EXISTS', P .. 'changes') == 1 then
  call('ZREMRANGEBYSCORE', P .. 'changes', '-inf', hour_ago)
end
local claimed = false
if ARGV[3] ~= '' then
  local request = cmsgpack.unpack(ARGV[3])
  claimed = claim(now, request[1], request[2], {})
end
return { now, answers, claimed }
