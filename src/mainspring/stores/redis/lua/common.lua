-- What every script begins with: the keys, rows in and out, and every index a row has.
-- Reads go through a cache, writes are collected and made at the very end by `flush`: a script that is refused
-- (no memory, a read-only replica) or that stumbles has written nothing. docs/redis.md has the layout.

local P = KEYS[1]
local call, struct, bit = redis.call, struct, bit
local pack, unpack_limit = cmsgpack.pack, cmsgpack.unpack_limit
local sub, format, floor = string.sub, string.format, math.floor
local NUL = string.char(0)
local BLOCK = 256
local URGENCY = 2 ^ 50 -- parked runs stand in the order of priority, then time, in one score
local ARGS = 4000 -- so many values fit into one command
local HAS_GATES, HAS_KEY, HAS_SCHEDULE, HAS_CANCEL = 1, 2, 4, 8

local function clock(given)
  if given ~= '' then
    return tonumber(given)
  end
  local t = call('TIME')
  return t[1] * 1000 + floor(t[2] / 1000)
end

local function in_parts(command, key, values)
  if #values <= ARGS then
    return call(command, key, unpack(values))
  end
  for at = 1, #values, ARGS do
    call(command, key, unpack(values, at, math.min(at + ARGS - 1, #values)))
  end
end

-- ── hashes ──────────────────────────────────────────────────────────────────

local known, changed = {}, {} -- hash → field → value as it will be, false where there is none

local function fields_of(hash)
  local fields = known[hash]
  if not fields then
    fields = {}
    known[hash] = fields
  end
  return fields
end

local function hget(hash, field)
  local fields = fields_of(hash)
  local value = fields[field]
  if value == nil then
    value = call('HGET', P .. hash, field)
    fields[field] = value
  end
  return value
end

-- Fetch many fields at once; those that are known already stay as they are.
local function hload(hash, wanted)
  local fields = fields_of(hash)
  for at = 1, #wanted, ARGS do
    local last = math.min(at + ARGS - 1, #wanted)
    local found = call('HMGET', P .. hash, unpack(wanted, at, last))
    for i = at, last do
      if fields[wanted[i]] == nil then
        fields[wanted[i]] = found[i - at + 1]
      end
    end
  end
end

local function hput(hash, field, value)
  fields_of(hash)[field] = value
  local fields = changed[hash]
  if not fields then
    fields = {}
    changed[hash] = fields
  end
  fields[field] = value
end

local function hdel(hash, field)
  hput(hash, field, false)
end

-- ── sorted sets, and the sets that name them ────────────────────────────────

local scores, rosters, lists = {}, {}, {}

local function zput(key, member, score)
  local members = scores[key]
  if not members then
    members = {}
    scores[key] = members
  end
  members[member] = score
end

local function zdel(key, member)
  zput(key, member, false)
end

-- A sorted set of a kind (`queue`, `own`, …) that a set of their names (`queues`, …) keeps track of.
local function zlist(roster, kind, name, member, score)
  zput(kind .. name, member, score)
  local names = rosters[roster]
  if not names then
    names = {}
    rosters[roster] = names
  end
  names[name] = kind .. name
end

local function push(key, value)
  local values = lists[key]
  if not values then
    values = {}
    lists[key] = values
  end
  values[#values + 1] = value
end

-- ── the log ─────────────────────────────────────────────────────────────────

local last_seq, first_seq

local function log_end()
  if not last_seq then
    last_seq = tonumber(call('GET', P .. 'seq') or 0)
    first_seq = last_seq
  end
  return last_seq
end

local function block_of(seq)
  return 'log:' .. format('%d', floor(seq / BLOCK))
end

-- An event as it is stored, under the next number, which is the answer.
local function record(event)
  local seq = log_end() + 1
  last_seq = seq
  hput(block_of(seq), format('%d', seq), event)
  return seq
end

-- ── writing ─────────────────────────────────────────────────────────────────

-- With `grows`, the server may refuse for want of memory; without, what is under way goes on: once a script has
-- written something, be it nothing, it is refused nothing more.
local function flush(grows)
  if not grows then
    call('DEL', P .. 'none')
  end
  if last_seq and last_seq > first_seq then
    call('INCRBY', P .. 'seq', last_seq - first_seq)
    for block = floor((first_seq + 1) / BLOCK), floor(last_seq / BLOCK) do
      call('ZADD', P .. 'blocks', block, format('%d', block))
    end
    first_seq = last_seq
  end
  local gone = {}
  for hash, fields in pairs(changed) do
    local values, no_more, n = {}, {}, 0
    for field, value in pairs(fields) do
      if value then
        values[n + 1], values[n + 2] = field, value
        n = n + 2
      else
        no_more[#no_more + 1] = field
      end
    end
    if n > 0 then
      in_parts('HSET', P .. hash, values)
    end
    if #no_more > 0 then
      gone[hash] = no_more
    end
  end
  for key, values in pairs(lists) do
    in_parts('RPUSH', P .. key, values)
  end
  for key, members in pairs(scores) do
    local values, no_more, n = {}, {}, 0
    for member, score in pairs(members) do
      if score then
        values[n + 1], values[n + 2] = score, member
        n = n + 2
      else
        no_more[#no_more + 1] = member
      end
    end
    if n > 0 then
      in_parts('ZADD', P .. key, values)
    end
    if #no_more > 0 then
      in_parts('ZREM', P .. key, no_more)
    end
  end
  for hash, no_more in pairs(gone) do
    in_parts('HDEL', P .. hash, no_more)
  end
  for roster, names in pairs(rosters) do
    for name, key in pairs(names) do
      call(call('EXISTS', P .. key) == 1 and 'SADD' or 'SREM', P .. roster, name)
    end
  end
  changed, scores, rosters, lists = {}, {}, {}, {}
end

-- ── runs ────────────────────────────────────────────────────────────────────
-- A row: a header of fixed size · its owner · its trail, the numbers of its moves, 6 bytes each · its head, what it was
-- born with · the rest, which scripts seldom read. Head, state and rest are a `Run` in the order of its fields; what
-- stands in the header has an empty place there.

local HEADER, HEADER_BYTES = '>BBHIIIIHIHIi8i8i8i8i8i8', 80
local STATES = { 'waiting', 'running', 'retrying', 'succeeded', 'failed', 'cancelled', 'skipped', 'lost', [0] = 'blocked' }
local CODES = {}
for code, state in pairs(STATES) do
  CODES[state] = code
end
local RUNNING, SUCCEEDED = CODES.running, CODES.succeeded
local ENDED = { succeeded = true, failed = true, cancelled = true, skipped = true, lost = true }
local IN_HEADER_5, IN_HEADER_1, IN_HEADER_3, IN_HEADER_2 = string.rep(NUL, 5), NUL, NUL .. pack(nil, nil), pack(nil, nil)
local rows = {}

local NEVER = -1 -- an instant that is not there

local function instant(value)
  return value ~= NEVER and value or nil
end

local function open_run(id, s)
  local flags, state, crashes, n, epoch, attempt, head, ident, body_at, owner, trail, due, ready, started, ended, lease, created =
    struct.unpack(HEADER, s)
  local o = HEADER_BYTES + owner
  local t = o + trail
  local _, _, _, _, _, _, failures, _, cancel, reason, result, err, began, ms, _, _, _, dead, _, _, parked, progress =
    unpack_limit(s, 21, t + head)
  return {
    id = id, flags = flags, state = STATES[state], crashes = crashes, n = n, epoch = epoch, attempt = attempt,
    ident = ident, body_at = body_at, owner = owner > 0 and sub(s, HEADER_BYTES + 1, o) or nil,
    trail = sub(s, o + 1, t), head = sub(s, t + 1, t + head), due = due, ready = ready, started = instant(started),
    ended = instant(ended), lease = instant(lease), created = created, failures = failures, cancel = cancel,
    reason = reason, result = result, error = err, began = began, ms = ms, dead = dead, parked = parked,
    progress = progress,
  }
end

local function close_run(r)
  local owner = r.owner or ''
  local flags = bit.band(r.flags, bit.bnot(HAS_CANCEL)) + (r.cancel and HAS_CANCEL or 0)
  return struct.pack(
    HEADER, flags, CODES[r.state], r.crashes, r.n, r.epoch, r.attempt, #r.head, r.ident, r.body_at, #owner, #r.trail,
    r.due, r.ready, r.started or NEVER, r.ended or NEVER, r.lease or NEVER, r.created
  ) .. owner .. r.trail .. r.head .. IN_HEADER_5 .. pack(r.failures) .. IN_HEADER_1
    .. pack(r.cancel, r.reason, r.result, r.error, r.began, r.ms) .. IN_HEADER_3 .. pack(r.dead) .. IN_HEADER_2
    .. pack(r.parked, r.progress)
end

-- The run of this id, or nil.
local function run_of(id)
  local r = rows[id]
  if r == nil then
    local s = hget('run', id)
    r = s and open_run(id, s) or false
    rows[id] = r
  end
  return r or nil
end

local function save_run(r)
  rows[r.id] = r
  hput('run', r.id, close_run(r))
end

-- What a run was born with, read when it is needed.
local function born(r)
  if not r.task then
    local _
    _, _, r.ns, r.sid, r.task, r.origin, r.fire_time, r.fire_key, _, _, r.lane, r.priority, r.gates, r.key, r.body =
      unpack_limit(r.head, 14, 0)
  end
  return r
end

local function set_body(r, body)
  local after = unpack_limit(r.head, 1, r.body_at)
  local rest = after < 0 and '' or sub(r.head, after + 1)
  r.head = sub(r.head, 1, r.body_at) .. pack(body) .. rest
  r.body = body
end

local function queue_of(r)
  born(r)
  return r.lane .. NUL .. format('%d', r.priority) .. NUL .. r.task
end

local function place_of(r)
  born(r)
  return r.priority * URGENCY + r.ready
end

local function uses(body, change)
  if body then
    hput('uses', body, tonumber(hget('uses', body) or 0) + change)
  end
end

-- Take a run out of the indexes of the state it is in.
local function leave(r)
  local state, id = r.state, r.id
  if state == 'waiting' or state == 'retrying' then
    if r.parked then
      zlist('parked', 'park:', r.parked, id, false)
    else
      zlist('queues', 'queue:', queue_of(r), id, false)
    end
  elseif state == 'running' then
    zlist('owners', 'own:', r.owner or '', id, false)
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

-- Put a run into the indexes of the state it is in now.
local function enter(r)
  local state, id = r.state, r.id
  local open = 0
  if state == 'waiting' or state == 'retrying' then
    if r.parked then
      zlist('parked', 'park:', r.parked, id, place_of(r))
    else
      zlist('queues', 'queue:', queue_of(r), id, r.ready)
    end
  elseif state == 'running' then
    open = 1
    zlist('owners', 'own:', r.owner or '', id, r.lease or 0)
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
    born(r)
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

-- A row that was not there: every index it will have for as long as it exists.
local function bear(id, ns, sid, fire_key, body)
  zlist('namespaces', 'runs:', ns, id, 0)
  if sid then
    zput('of:' .. sid, id, 0)
    if fire_key then
      hput('fire:' .. sid, fire_key, id)
    end
  end
  uses(body, 1)
end

-- The next number of a run's stream, for an event that is stored as `rest` behind its time and number.
local function move(r, at, rest)
  r.n = r.n + 1
  r.trail = r.trail .. struct.pack('>I6', record(at .. pack(r.n) .. rest))
end

-- ── schedules ───────────────────────────────────────────────────────────────
-- A row: 11 values a script reads, then the `Schedule`, whose n, created_at and updated_at are those in front.

local plans = {}

local function schedule_of(id)
  local s = plans[id]
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
    plans[id] = s
  end
  return s or nil
end

-- Write a schedule and every index it has; `old` is the row it takes the place of.
local function save_schedule(s, old)
  local id, name = s.id, s.ns .. NUL .. s.name
  plans[id] = s
  hput(
    'schedule',
    id,
    pack(s.n, s.revision, s.cursor, s.created, s.updated, s.state, s.next_at, s.ns, s.name, s.app, s.body) .. s.rest
  )
  if s.state ~= 'deleted' then
    hput('names', name, id)
  elseif hget('names', name) == id then
    hdel('names', name)
  end
  zput('schedules', id, 0)
  zdel('held', id)
  local plans_on = s.next_at and s.state ~= 'finished' and s.state ~= 'deleted'
  zput('due', id, plans_on and s.next_at or false)
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
    uses(s.body, 1)
    uses(before, -1)
  end
end

-- ── gates ───────────────────────────────────────────────────────────────────

local function gate_of(name)
  local s = hget('gate', name)
  if s then
    local _, max, held, closed = unpack_limit(s, 3, 0)
    return { name = name, max = max, held = held, closed = closed }
  end
end

local function save_gate(g)
  hput('gate', g.name, pack(g.max, g.held, g.closed))
  zput('gates', g.name, 0)
end

local function room(g, now)
  return g.closed > now and 0 or math.max(0, g.max - g.held)
end
