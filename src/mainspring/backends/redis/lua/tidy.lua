-- First call of retention: remove old notes (events that change no row), leases and key-value entries, and return runs,
-- spans and schedules that may be removed. These are removed later by purge.lua, because the snapshots that replace a
-- schedule's events are built in Python.
-- KEYS[1]: prefix. ARGV: now or '', instant before which rows must have ended, limit of each kind, '1' to keep dead
-- letters, maximum of ended runs or '', prefix of removable leases, instant before which leases must have been renewed
-- Returns {now, 1 if more may be removed, notes, leases and key-value entries removed, rows of runs, spans {{schedule,
-- span…}…}, deleted schedules {{schedule, row}…}, schedules of these runs and spans {{schedule, row, number,
-- event, …}…}}.

local now, ended_before, limit = current_time(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local keep_dead, max_ended, prefix = ARGV[4] == '1', tonumber(ARGV[5]), ARGV[6]
local more = false

-- Remove old notes, except the newest LogCompacted; return how many were removed.
local function remove_notes()
  local last, done = call('GET', P .. 'compacted'), 0
  local through = '(' .. format('%d', ended_before)
  for _, seq in ipairs(call('ZRANGEBYSCORE', P .. 'notes', '-inf', through, 'LIMIT', 0, limit + 2)) do
    if seq ~= last and done == limit then
      more = true
    elseif seq ~= last then
      local event = hget(block_key(tonumber(seq)), seq)
      if event then
        local _, _, _, _, _, _, _, run = unpack_limit(event, 7, 0)
        if run then
          zdel('noted', run .. NUL .. format('%016d', tonumber(seq)))
        end
      end
      drop_event(tonumber(seq))
      zdel('notes', seq)
      done = done + 1
    end
  end
  return done
end

-- Remove leases with the prefix that have ended and were last renewed before ARGV[7]; return how many were removed.
local function remove_leases()
  local done = 0
  for _, name in ipairs(call('ZRANGEBYSCORE', P .. 'lease:renewed', '-inf', '(' .. ARGV[7])) do
    if sub(name, 1, #prefix) == prefix then
      local row = cmsgpack.unpack(call('HGET', P .. 'lease:rows', name))
      if not (row[6] and row[3] > now) then
        if done == limit then
          more = true
          break
        end
        hdel('lease:rows', name)
        zdel('lease:renewed', name)
        zdel('lease:names', name)
        done = done + 1
      end
    end
  end
  return done
end

-- Remove expired key-value entries; return how many were removed.
local function remove_keyvalues()
  local names = call('ZRANGEBYSCORE', P .. 'kept:ends', '-inf', now, 'LIMIT', 0, limit + 1)
  for i = 1, math.min(#names, limit) do
    hdel('kept:rows', names[i])
    zdel('kept:ends', names[i])
    zdel('kept:names', names[i])
  end
  more = more or #names > limit
  return math.min(#names, limit)
end

-- Return ids of removable runs, those that ended first at the front: runs that ended before `ended_before`, and the
-- surplus over the maximum of ended runs. There are at most `limit` + 1 ids: the last id shows that there are more.
local function find_ended_runs()
  local found, at, passed = {}, 0, 0
  local kept = max_ended and keep_dead and call('ZCARD', P .. 'dead') or 0
  local surplus = max_ended and call('ZCARD', P .. 'ended') - kept - max_ended or 0
  while #found <= limit do
    local part = call('ZRANGE', P .. 'ended', at, at + 499, 'WITHSCORES')
    for i = 1, #part, 2 do
      if not (keep_dead and call('ZSCORE', P .. 'dead', part[i])) then
        passed = passed + 1
        if (tonumber(part[i + 1]) >= ended_before and passed > surplus) or #found > limit then
          return found
        end
        found[#found + 1] = part[i]
      elseif tonumber(part[i + 1]) >= ended_before and passed >= surplus then
        return found
      end
    end
    if #part < 1000 then
      return found
    end
    at = at + 500
  end
  return found
end

-- Return up to `limit` spans that end before `ended_before`: {{schedule, span…}…}.
local function find_spans()
  local found, left = {}, limit
  local through = '(' .. format('%d', ended_before)
  local names = call('SMEMBERS', P .. 'spanned')
  table.sort(names)
  for _, id in ipairs(names) do
    local old = call('ZRANGEBYSCORE', P .. 'span:' .. id, '-inf', through, 'LIMIT', 0, left + 1)
    if #old > left then
      more = true
      old[#old] = nil
    end
    if #old > 0 then
      table.insert(old, 1, id)
      found[#found + 1] = old
      left = left - #old + 1
    end
  end
  return found
end

-- Return up to `limit` schedules that were deleted before `ended_before` and have no runs or spans: {{schedule, row}…}.
local function find_deleted_schedules()
  local found = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'gone', '-inf', '(' .. format('%d', ended_before))) do
    if call('EXISTS', P .. 'of:' .. id) == 0 and call('EXISTS', P .. 'span:' .. id) == 0 then
      if #found == limit then
        more = true
        break
      end
      found[#found + 1] = { id, hget('schedule', id) }
    end
  end
  return found
end

-- Return a schedule with its own events: {schedule, its row, number, event, …}.
local function schedule_with_events(id)
  local found = { id, hget('schedule', id) }
  for _, seq in ipairs(call('LRANGE', P .. 'moves:' .. id, 0, -1)) do
    found[#found + 1] = seq
    found[#found + 1] = hget(block_key(tonumber(seq)), seq)
  end
  return found
end

local run_ids, old_spans, old_schedules = find_ended_runs(), find_spans(), find_deleted_schedules()
if #run_ids > limit then
  more = true
  run_ids[#run_ids] = nil
end
hload('run', run_ids)
local rows_found, schedules_found, seen = {}, {}, {}
local function add_schedule(id)
  if id and not seen[id] and hget('schedule', id) then
    seen[id] = true
    schedules_found[#schedules_found + 1] = schedule_with_events(id)
  end
end
for i, id in ipairs(run_ids) do
  rows_found[i] = hget('run', id)
  add_schedule(load_head(load_run(id)).sid)
end
for _, old in ipairs(old_spans) do
  add_schedule(old[1])
end
local notes_gone, leases_gone, kept_gone = remove_notes(), remove_leases(), remove_keyvalues()
if notes_gone + leases_gone + kept_gone > 0 then
  flush_removals()
end
return {
  now, more and 1 or 0, notes_gone, leases_gone, kept_gone, rows_found, old_spans, old_schedules, schedules_found,
}
