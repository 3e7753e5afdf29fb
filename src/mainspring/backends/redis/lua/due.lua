-- Return the due rows of one agenda and hold them, so that other instances skip them for `hold` milliseconds.
-- KEYS[1]: prefix. ARGV: now or '', agenda, limit, hold in ms, how far ahead of their time schedules are due in ms
-- Returns {now, next due time or false, rows}; agenda `gates` returns a number of unparked runs in place of rows.

local now, agenda = current_time(ARGV[1]), ARGV[2]
local limit, hold, ahead = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

-- Return the first two members of a sorted set with a score from `from` to `to`.
local function first_two(key, from, to)
  return call('ZRANGEBYSCORE', P .. key, from, to, 'LIMIT', 0, 2)
end

-- Return {row of the schedule, its count of touches, number of its open runs, number of open runs that are not running,
-- rows of up to two oldest open runs…}.
local function schedule_with_open_runs(id)
  local open = 'open:' .. id
  local oldest = first_two(open, 0, 0)
  for _, run in ipairs(first_two(open, 1, 1)) do
    oldest[#oldest + 1] = run
  end
  table.sort(oldest)
  local found = {
    hget('schedule', id),
    tonumber(hget('touched', id) or 0),
    call('ZCARD', P .. open),
    call('ZCOUNT', P .. open, 0, 0),
  }
  for i = 1, math.min(2, #oldest) do
    found[#found + 1] = hget('run', oldest[i])
  end
  return found
end

-- Return ids of schedules that are due at the time `through`, earliest first, without held schedules; up to `limit`.
local function due_not_held(through)
  local ids, at = {}, 0
  while #ids < limit do
    local page = call('ZRANGEBYSCORE', P .. 'due', '-inf', through, 'LIMIT', at, limit)
    for _, id in ipairs(page) do
      if #ids < limit and tonumber(call('ZSCORE', P .. 'held', id) or 0) <= now then
        ids[#ids + 1] = id
      end
    end
    if #page < limit then
      break
    end
    at = at + limit
  end
  return ids
end

-- Hold and return due schedules. A schedule that is due only because of `ahead` is held until its own time, and does
-- not count for the next due time: the caller has the row and knows its time.
local function schedules()
  call('ZREMRANGEBYSCORE', P .. 'held', '-inf', now)
  local ids = due_not_held(now + ahead)
  local found, is_early, early_count = {}, {}, 0
  hload('schedule', ids)
  for i, id in ipairs(ids) do
    local s = load_schedule(id)
    if s.next_at > now then
      is_early[id], early_count = true, early_count + 1
      zput('held', id, s.next_at)
    else
      zput('due', id, now + hold)
      zput('held', id, now + hold)
    end
    found[i] = schedule_with_open_runs(id)
  end
  flush()
  local heads = call('ZRANGE', P .. 'due', 0, early_count, 'WITHSCORES')
  for i = 1, #heads, 2 do
    if not is_early[heads[i]] then
      return { now, tonumber(heads[i + 1]), found }
    end
  end
  return { now, false, found }
end

-- Hold and return touched schedules. Until the hold ends, they do not count as due because of their time either.
local function touched()
  local found = {}
  local ids = call('HKEYS', P .. 'touched')
  table.sort(ids)
  for _, id in ipairs(ids) do
    if #found >= limit then
      break
    end
    if tonumber(call('ZSCORE', P .. 'held', id) or 0) <= now then
      zput('held', id, now + hold)
      if call('ZSCORE', P .. 'due', id) then
        zput('due', id, math.max(now + hold, tonumber(call('ZSCORE', P .. 'due', id))))
      end
      found[#found + 1] = schedule_with_open_runs(id)
    end
  end
  flush()
  return { now, false, found }
end

-- Hold and return running runs whose lease has expired. Each is due again when its hold ends.
local function expired()
  local ids, found, next_at = {}, {}, false
  for _, owner in ipairs(call('SMEMBERS', P .. 'owners')) do
    local own = 'own:' .. owner
    for _, id in ipairs(call('ZRANGEBYSCORE', P .. own, '-inf', now, 'LIMIT', 0, limit - #ids)) do
      ids[#ids + 1] = id
      zput(own, id, now + hold)
    end
  end
  hload('run', ids)
  for i, id in ipairs(ids) do
    found[i] = hget('run', id)
  end
  flush()
  for _, owner in ipairs(call('SMEMBERS', P .. 'owners')) do
    local head = call('ZRANGE', P .. 'own:' .. owner, 0, 0, 'WITHSCORES')
    if head[2] then
      next_at = next_at and math.min(next_at, tonumber(head[2])) or tonumber(head[2])
    end
  end
  return { now, #ids >= limit and now or next_at, found }
end

-- Unpark up to `limit` runs whose gate has room, or does not exist: they become claimable again.
local function gates()
  local names = call('SMEMBERS', P .. 'parked')
  local unparked = {}
  table.sort(names)
  hload('gate', names)
  for _, name in ipairs(names) do
    local g = load_gate(name)
    local places = math.min(g and free_places(g, now) or limit, limit - #unparked)
    if places > 0 then
      for _, id in ipairs(call('ZRANGE', P .. 'park:' .. name, 0, places - 1)) do
        unparked[#unparked + 1] = id
      end
    end
  end
  hload('run', unparked)
  for _, id in ipairs(unparked) do
    local r = load_run(id)
    unindex_run(r)
    r.parked = nil
    index_run(r)
    save_run(r)
  end
  flush()
  return { now, false, #unparked }
end

if limit <= 0 then
  return { now, false, agenda == 'gates' and 0 or {} }
end
return ({ schedules = schedules, touched = touched, expired = expired, gates = gates })[agenda]()
