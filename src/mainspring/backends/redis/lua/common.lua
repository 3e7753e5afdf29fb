-- The first part of most scripts: names of keys, decoding and encoding of rows, and the indexes of every row.
-- KEYS[1]: the prefix of every key, `{mainspring}:`. It is the hash tag, so all keys of one store lie in one slot.
-- Reads go through a cache. Writes are collected, and sent by `flush` once everything is checked. So a script that the
-- server refuses (no memory, a read-only replica), or that raises an error before `flush`, has written nothing.
-- docs/redis.md lists every key.

local P = KEYS[1] -- short, because every key name in every script begins with it
local call, struct, bit = redis.call, struct, bit
local pack, unpack_limit = cmsgpack.pack, cmsgpack.unpack_limit
local sub, format, floor = string.sub, string.format, math.floor
local NUL = string.char(0)
local BLOCK_EVENTS = 256
local PRIORITY_WEIGHT = 2 ^ 50 -- one score orders parked runs by priority, then by time in milliseconds
local MAX_ARGS = 4000 -- values in one command: Lua's unpack() fails above about 8000
local HAS_GATES, HAS_KEY, HAS_SCHEDULE, HAS_CANCEL = 1, 2, 4, 8

-- The server's time in milliseconds; a test passes its own time as `override`, other callers pass ''.
local function current_time(override)
  if override ~= '' then
    return tonumber(override)
  end
  local t = call('TIME')
  return t[1] * 1000 + floor(t[2] / 1000)
end

-- Call `command key values…`, split into several calls when there are more than MAX_ARGS values.
local function call_in_chunks(command, key, values)
  if #values <= MAX_ARGS then
    return call(command, key, unpack(values))
  end
  for at = 1, #values, MAX_ARGS do
    call(command, key, unpack(values, at, math.min(at + MAX_ARGS - 1, #values)))
  end
end

-- ── hashes ──────────────────────────────────────────────────────────────────

-- hash → field → its value with the changes of this script; false: the field does not exist. `hash_cache` has all
-- fields that the script has read or changed, `hash_changes` only those to be written.
local hash_cache, hash_changes = {}, {}

-- Return the cached fields of a hash: the table of the cache itself, for the caller to change.
local function cached_fields(hash)
  local fields = hash_cache[hash]
  if not fields then
    fields = {}
    hash_cache[hash] = fields
  end
  return fields
end

-- Return the value of a field with the changes that this script has made before; false if the field does not exist.
local function hget(hash, field)
  local fields = cached_fields(hash)
  local value = fields[field]
  if value == nil then
    value = call('HGET', P .. hash, field)
    fields[field] = value
  end
  return value
end

-- Read many fields into the cache at once. Fields that are cached already keep their cached value.
local function hload(hash, wanted)
  local fields = cached_fields(hash)
  for at = 1, #wanted, MAX_ARGS do
    local last = math.min(at + MAX_ARGS - 1, #wanted)
    local found = call('HMGET', P .. hash, unpack(wanted, at, last))
    for i = at, last do
      if fields[wanted[i]] == nil then
        fields[wanted[i]] = found[i - at + 1]
      end
    end
  end
end

-- Set a field; the value false removes it.
local function hput(hash, field, value)
  cached_fields(hash)[field] = value
  local fields = hash_changes[hash]
  if not fields then
    fields = {}
    hash_changes[hash] = fields
  end
  fields[field] = value
end

local function hdel(hash, field)
  hput(hash, field, false)
end

-- ── sorted sets, and the sets that list their names ─────────────────────────

-- Writes for `flush`. Sorted set → member → new score or false; registry → name → key; list → values to append.
local score_changes, registries, list_appends = {}, {}, {}

-- Set a member's score in a sorted set; the score false removes the member.
local function zput(key, member, score)
  local members = score_changes[key]
  if not members then
    members = {}
    score_changes[key] = members
  end
  members[member] = score
end

local function zdel(key, member)
  zput(key, member, false)
end

-- Set a member's score (false removes it) in the sorted set `kind .. name`, for example `queue:default/default`.
-- `flush` then adds `name` to the set `registry` (`queues`, `owners`, …), or removes it if the sorted set is empty.
local function zput_registered(registry, kind, name, member, score)
  zput(kind .. name, member, score)
  local names = registries[registry]
  if not names then
    names = {}
    registries[registry] = names
  end
  names[name] = kind .. name
end

-- Remove the spans of a schedule that end at the instant `at` or later, also those that this script has written.
local function cut_spans(id, at)
  for _, member in ipairs(call('ZRANGEBYSCORE', P .. 'span:' .. id, format('%d', at), '+inf')) do
    zput_registered('spanned', 'span:', id, member, false)
  end
  for member, score in pairs(score_changes['span:' .. id] or {}) do
    if score and score >= at then
      score_changes['span:' .. id][member] = false
    end
  end
end

-- Append a value to a list.
local function push(key, value)
  local values = list_appends[key]
  if not values then
    values = {}
    list_appends[key] = values
  end
  values[#values + 1] = value
end

-- ── the log ─────────────────────────────────────────────────────────────────

-- The number of the last event in the log, with the events of this script; and the number that is stored. Both are nil
-- until `log_end` reads them.
local last_seq, first_seq

-- Return the number of the last event in the log, events of this script included.
local function log_end()
  if not last_seq then
    last_seq = tonumber(call('GET', P .. 'seq') or 0)
    first_seq = last_seq
  end
  return last_seq
end

-- Return the name of the hash (a block of the log) that holds the event with this number.
local function block_key(seq)
  return 'log:' .. format('%d', floor(seq / BLOCK_EVENTS))
end

-- Append an encoded event to the log; returns its number.
local function append_event(event)
  local seq = log_end() + 1
  last_seq = seq
  hput(block_key(seq), format('%d', seq), event)
  return seq
end

-- ── writing ─────────────────────────────────────────────────────────────────

-- Send all collected writes. With `refusable`, the server may refuse the script at maxmemory. Without it, the script
-- first deletes a key that never exists, because the server refuses no command of a script after its first write. So
-- claims, outcomes and renewals are stored even at maxmemory.
local function flush(refusable)
  if not refusable then
    call('DEL', P .. 'none')
  end
  if last_seq and last_seq > first_seq then
    call('INCRBY', P .. 'seq', last_seq - first_seq)
    for block = floor((first_seq + 1) / BLOCK_EVENTS), floor(last_seq / BLOCK_EVENTS) do
      call('ZADD', P .. 'blocks', block, format('%d', block))
    end
    first_seq = last_seq
  end
  local removals = {}
  for hash, fields in pairs(hash_changes) do
    local values, removed, n = {}, {}, 0
    for field, value in pairs(fields) do
      if value then
        values[n + 1], values[n + 2] = field, value
        n = n + 2
      else
        removed[#removed + 1] = field
      end
    end
    if n > 0 then
      call_in_chunks('HSET', P .. hash, values)
    end
    if #removed > 0 then
      removals[hash] = removed
    end
  end
  for key, values in pairs(list_appends) do
    call_in_chunks('RPUSH', P .. key, values)
  end
  for key, members in pairs(score_changes) do
    local values, removed, n = {}, {}, 0
    for member, score in pairs(members) do
      if score then
        values[n + 1], values[n + 2] = score, member
        n = n + 2
      else
        removed[#removed + 1] = member
      end
    end
    if n > 0 then
      call_in_chunks('ZADD', P .. key, values)
    end
    if #removed > 0 then
      call_in_chunks('ZREM', P .. key, removed)
    end
  end
  for hash, removed in pairs(removals) do
    call_in_chunks('HDEL', P .. hash, removed)
  end
  for registry, names in pairs(registries) do
    for name, key in pairs(names) do
      call(call('EXISTS', P .. key) == 1 and 'SADD' or 'SREM', P .. registry, name)
    end
  end
  hash_changes, score_changes, registries, list_appends = {}, {}, {}, {}
end

-- ── runs ────────────────────────────────────────────────────────────────────
-- A row: header of fixed size · owner · trail (the log numbers of the run's events, 6 bytes each) · head (fields set at
-- the insert, of which only the payload's id may change) · rest (fields that scripts seldom read). Head, state and rest
-- together are the fields of a `Run` in its order. A field that is in the header is blank in head or rest.

local HEADER, HEADER_BYTES = '>BBHIIIIHIHIi8i8i8i8i8i8', 80
local STATES = {
  'waiting', 'running', 'retrying', 'succeeded', 'failed', 'cancelled', 'skipped', 'lost', [0] = 'blocked',
}
local CODES = {}
for code, state in pairs(STATES) do
  CODES[state] = code
end
local RUNNING, SUCCEEDED = CODES.running, CODES.succeeded
local ENDED = { succeeded = true, failed = true, cancelled = true, skipped = true, lost = true }
local BLANK_5, BLANK_1, BLANK_3, BLANK_2 = string.rep(NUL, 5), NUL, NUL .. pack(nil, nil), pack(nil, nil)
local run_cache = {}

local NEVER = -1 -- in the header: this instant is not set

local function instant_or_nil(value)
  return value ~= NEVER and value or nil
end

-- Return the run in the row `s`, as a table. `id`: the run's id. `load_head` adds the fields of the head when needed.
local function decode_run(id, s)
  local flags, state, crashes, n, epoch, attempt, head, ident, body_at, owner, trail, due, ready, started, ended,
    lease, created = struct.unpack(HEADER, s)
  local o = HEADER_BYTES + owner
  local t = o + trail
  local _, _, _, _, _, _, failures, _, cancel, reason, result, err, began, ms, _, _, _, dead, _, _, parked, progress =
    unpack_limit(s, 21, t + head)
  return {
    id = id, flags = flags, state = STATES[state], crashes = crashes, n = n, epoch = epoch, attempt = attempt,
    ident = ident, body_at = body_at, owner = owner > 0 and sub(s, HEADER_BYTES + 1, o) or nil,
    trail = sub(s, o + 1, t), head = sub(s, t + 1, t + head), due = due, ready = ready,
    started = instant_or_nil(started), ended = instant_or_nil(ended), lease = instant_or_nil(lease),
    created = created, failures = failures, cancel = cancel, reason = reason, result = result, error = err,
    began = began, ms = ms, dead = dead, parked = parked, progress = progress,
  }
end

-- Return the row of a run that `decode_run` decoded, with its changes.
local function encode_run(r)
  local owner = r.owner or ''
  local flags = bit.band(r.flags, bit.bnot(HAS_CANCEL)) + (r.cancel and HAS_CANCEL or 0)
  return struct.pack(
    HEADER, flags, CODES[r.state], r.crashes, r.n, r.epoch, r.attempt, #r.head, r.ident, r.body_at, #owner, #r.trail,
    r.due, r.ready, r.started or NEVER, r.ended or NEVER, r.lease or NEVER, r.created
  ) .. owner .. r.trail .. r.head .. BLANK_5 .. pack(r.failures) .. BLANK_1
    .. pack(r.cancel, r.reason, r.result, r.error, r.began, r.ms) .. BLANK_3 .. pack(r.dead) .. BLANK_2
    .. pack(r.parked, r.progress)
end

-- Return the decoded run with this id, or nil. All calls for one run return one table, which callers change.
local function load_run(id)
  local r = run_cache[id]
  if r == nil then
    local s = hget('run', id)
    r = s and decode_run(id, s) or false
    run_cache[id] = r
  end
  return r or nil
end

-- Write a run's row. The caller updates the indexes: `unindex_run` before it changes the run, `index_run` after.
local function save_run(r)
  run_cache[r.id] = r
  hput('run', r.id, encode_run(r))
end

-- Decode a run's head on first use; returns the run.
local function load_head(r)
  if not r.task then
    local _
    _, _, r.ns, r.sid, r.task, r.origin, r.fire_time, r.fire_key, _, _, r.lane, r.priority, r.gates, r.key, r.body =
      unpack_limit(r.head, 14, 0)
  end
  return r
end

-- Replace the payload's id in a run's head.
local function set_body(r, body)
  local after = unpack_limit(r.head, 1, r.body_at)
  local rest = after < 0 and '' or sub(r.head, after + 1)
  r.head = sub(r.head, 1, r.body_at) .. pack(body) .. rest
  r.body = body
end

-- Return the name of a claimable run's queue: lane NUL priority NUL task.
local function queue_name(r)
  load_head(r)
  return r.lane .. NUL .. format('%d', r.priority) .. NUL .. r.task
end

-- Return the score of a parked run in its gate's sorted set, which orders by priority, then by ready time.
local function parking_score(r)
  load_head(r)
  return r.priority * PRIORITY_WEIGHT + r.ready
end

-- Add `change` to the number of rows that use a payload. `body`: the payload's id, or nil.
local function add_uses(body, change)
  if body then
    hput('uses', body, tonumber(hget('uses', body) or 0) + change)
  end
end

-- Remove a run from the indexes of its present state.
local function unindex_run(r)
  local state, id = r.state, r.id
  if state == 'waiting' or state == 'retrying' then
    if r.parked then
      zput_registered('parked', 'park:', r.parked, id, false)
    else
      zput_registered('queues', 'queue:', queue_name(r), id, false)
    end
  elseif state == 'running' then
    zput_registered('owners', 'own:', r.owner or '', id, false)
  elseif state == 'blocked' then
    zdel('blocked', id)
  else
    zdel('ended', id)
    if state ~= 'succeeded' then
      zdel('unhappy', id)
    end
    if r.dead then
      zdel('dead', id)
    end
  end
end

-- Add a run to the indexes of its present state, and update the indexes of open runs and unique keys.
local function index_run(r)
  local state, id = r.state, r.id
  local open = 0
  if state == 'waiting' or state == 'retrying' then
    if r.parked then
      zput_registered('parked', 'park:', r.parked, id, parking_score(r))
    else
      zput_registered('queues', 'queue:', queue_name(r), id, r.ready)
    end
  elseif state == 'running' then
    open = 1
    zput_registered('owners', 'own:', r.owner or '', id, r.lease or 0)
  elseif state == 'blocked' then
    zput('blocked', id, 0)
  else
    open = false
    zput('ended', id, r.ended or 0)
    if state ~= 'succeeded' then
      zput('unhappy', id, 0)
    end
    if r.dead then
      zput('dead', id, 0)
    end
  end
  if r.flags >= HAS_KEY then
    load_head(r)
    if r.sid then
      zput('open:' .. r.sid, id, open)
    end
    if r.key then
      local key = r.ns .. NUL .. r.key
      if open then
        hput('unique', key, id)
      elseif hget('unique', key) == id then
        hdel('unique', key)
      end
    end
  end
end

-- Add a new run to the indexes that it keeps until retention removes it.
local function index_new_run(id, ns, sid, fire_key, body)
  zput_registered('namespaces', 'runs:', ns, id, 0)
  if sid then
    zput('of:' .. sid, id, 0)
    if fire_key then
      hput('fire:' .. sid, fire_key, id)
    end
  end
  add_uses(body, 1)
end

-- Append an event to the log as the next event of a run. `at`: its packed time; `rest`: the encoded fields that follow
-- time and number.
local function append_run_event(r, at, rest)
  r.n = r.n + 1
  r.trail = r.trail .. struct.pack('>I6', append_event(at .. pack(r.n) .. rest))
end

-- ── schedules ───────────────────────────────────────────────────────────────
-- A row: 11 columns that scripts read and update, then the encoded `Schedule`, which scripts do not change. So n,
-- created_at and updated_at in the encoded schedule may be outdated: the columns count.

local schedule_cache = {}

-- Return the decoded schedule with this id, or nil.
local function load_schedule(id)
  local s = schedule_cache[id]
  if s == nil then
    local row = hget('schedule', id)
    s = false
    if row then
      local rest
      s = { id = id }
      rest, s.n, s.revision, s.cursor, s.created, s.updated, s.state, s.next_at, s.ns, s.name, s.app, s.body =
        unpack_limit(row, 11, 0)
      s.rest = sub(row, rest + 1)
    end
    schedule_cache[id] = s
  end
  return s or nil
end

-- Write a schedule's row and update its indexes. `old`: the schedule before the change, nil for a new schedule.
local function save_schedule(s, old)
  local id, name = s.id, s.ns .. NUL .. s.name
  schedule_cache[id] = s
  hput(
    'schedule',
    id,
    pack(s.n, s.revision, s.cursor, s.created, s.updated, s.state, s.next_at, s.ns, s.name, s.app, s.body) .. s.rest
  )
  local old_name = old and old.ns .. NUL .. old.name
  if old_name and old_name ~= name and hget('names', old_name) == id then
    hdel('names', old_name)
  end
  if s.state ~= 'deleted' then
    hput('names', name, id)
  elseif hget('names', name) == id then
    hdel('names', name)
  end
  zput('schedules', id, 0)
  zdel('held', id)
  local is_planned = s.next_at and s.state ~= 'finished' and s.state ~= 'deleted'
  zput('due', id, is_planned and s.next_at or false)
  zput('unplanned', id, s.state == 'active' and not s.next_at and 0)
  if old and old.app ~= s.app and old.app ~= '' then
    zdel('app:' .. old.app, id)
  end
  if s.app ~= '' then
    zput('app:' .. s.app, id, 0)
  end
  if s.state == 'deleted' then
    zput('gone', id, s.updated)
  elseif old and old.state == 'deleted' then
    zdel('gone', id)
  end
  local before = old and old.body or nil
  if before ~= s.body then
    add_uses(s.body, 1)
    add_uses(before, -1)
  end
end

-- ── gates ───────────────────────────────────────────────────────────────────

-- Return the decoded gate with this name, or nil.
local function load_gate(name)
  local s = hget('gate', name)
  if s then
    local _, max, held, closed = unpack_limit(s, 3, 0)
    return { name = name, max = max, held = held, closed = closed }
  end
end

-- Write a gate's row, and add its name to the list of gates.
local function save_gate(g)
  hput('gate', g.name, pack(g.max, g.held, g.closed))
  zput('gates', g.name, 0)
end

-- Return how many more runs a gate admits at the time `now`.
local function free_places(g, now)
  return g.closed > now and 0 or math.max(0, g.max - g.held)
end
