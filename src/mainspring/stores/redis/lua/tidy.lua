-- What retention may remove: old notes, leases and kept things go at once, the rest is only looked at, because a
-- schedule's snapshot is made elsewhere.
-- ARGV: now or '', ended before, limit, '1' keep the dead, most ended runs or '', lease prefix, leases before
-- {now, more, notes, leases, kept, rows of runs, {{schedule, spans…}…}, {{schedule, row}…}, {{schedule, row, number,
-- event, …}…}}

local now, before, limit = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local keep_dead, most, prefix = ARGV[4] == '1', tonumber(ARGV[5]), ARGV[6]
local more = false

local function notes()
  local last, done = call('GET', P .. 'compacted'), 0
  for _, seq in ipairs(call('ZRANGEBYSCORE', P .. 'notes', '-inf', '(' .. format('%d', before), 'LIMIT', 0, limit + 2)) do
    if seq ~= last and done == limit then
      more = true
    elseif seq ~= last then
      local event = hget(block_of(tonumber(seq)), seq)
      if event then
        local _, _, _, _, _, _, _, run = unpack_limit(event, 7, 0)
        if run then
          zdel('noted', run .. NUL .. format('%016d', tonumber(seq)))
        end
      end
      forget_event(tonumber(seq))
      zdel('notes', seq)
      done = done + 1
    end
  end
  return done
end

local function leases()
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

local function kept()
  local names = call('ZRANGEBYSCORE', P .. 'kept:ends', '-inf', now, 'LIMIT', 0, limit + 1)
  for i = 1, math.min(#names, limit) do
    hdel('kept:rows', names[i])
    zdel('kept:ends', names[i])
    zdel('kept:names', names[i])
  end
  more = more or #names > limit
  return math.min(#names, limit)
end

-- The longest ended first: what ended too long ago, and what is more than may be kept.
local function runs()
  local found, at, passed = {}, 0, 0
  local surplus = most and call('ZCARD', P .. 'ended') - (keep_dead and call('ZCARD', P .. 'dead') or 0) - most or 0
  while #found <= limit do
    local part = call('ZRANGE', P .. 'ended', at, at + 499, 'WITHSCORES')
    for i = 1, #part, 2 do
      if not (keep_dead and call('ZSCORE', P .. 'dead', part[i])) then
        passed = passed + 1
        if (tonumber(part[i + 1]) >= before and passed > surplus) or #found > limit then
          return found
        end
        found[#found + 1] = part[i]
      elseif tonumber(part[i + 1]) >= before and passed >= surplus then
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

local function spans()
  local found, left = {}, limit
  local names = call('SMEMBERS', P .. 'spanned')
  table.sort(names)
  for _, id in ipairs(names) do
    local old = call('ZRANGEBYSCORE', P .. 'span:' .. id, '-inf', '(' .. format('%d', before), 'LIMIT', 0, left + 1)
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

local function gone()
  local found = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'gone', '-inf', '(' .. format('%d', before))) do
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

-- A schedule's row and the moves that made it.
local function plan(id)
  local found = { id, hget('schedule', id) }
  for _, seq in ipairs(call('LRANGE', P .. 'moves:' .. id, 0, -1)) do
    found[#found + 1] = seq
    found[#found + 1] = hget(block_of(tonumber(seq)), seq)
  end
  return found
end

local old_runs, old_spans, old_schedules = runs(), spans(), gone()
if #old_runs > limit then
  more = true
  old_runs[#old_runs] = nil
end
hload('run', old_runs)
local rows_found, plans_found, seen = {}, {}, {}
local function see(id)
  if id and not seen[id] and hget('schedule', id) then
    seen[id] = true
    plans_found[#plans_found + 1] = plan(id)
  end
end
for i, id in ipairs(old_runs) do
  rows_found[i] = hget('run', id)
  see(born(run_of(id)).sid)
end
for _, old in ipairs(old_spans) do
  see(old[1])
end
local notes_gone, leases_gone, kept_gone = notes(), leases(), kept()
if notes_gone + leases_gone + kept_gone > 0 then
  finish()
end
return { now, more and 1 or 0, notes_gone, leases_gone, kept_gone, rows_found, old_spans, old_schedules, plans_found }
