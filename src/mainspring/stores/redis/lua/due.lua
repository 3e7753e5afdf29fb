-- What the settler should look at, marked held. ARGV: now or '', agenda, limit, hold, how far ahead

local now, agenda = clock(ARGV[1]), ARGV[2]
local limit, hold, ahead = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local function in_order(key, from, to)
  return call('ZRANGEBYSCORE', P .. key, from, to, 'LIMIT', 0, 2)
end

-- {row, touch mark, open, waiting, the two oldest open runs…}
local function with_runs(id)
  local open = 'open:' .. id
  local oldest = in_order(open, 0, 0)
  for _, run in ipairs(in_order(open, 1, 1)) do
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

-- Ids that are due by `through`, in order, without those somebody holds.
local function free(through)
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

-- Those that are early are held until their time, and who asked knows when that is.
local function schedules()
  call('ZREMRANGEBYSCORE', P .. 'held', '-inf', now)
  local ids = free(now + ahead)
  local found, early, known = {}, {}, 0
  hload('schedule', ids)
  for i, id in ipairs(ids) do
    local s = schedule_of(id)
    if s.next_at > now then
      early[id], known = true, known + 1
      zput('held', id, s.next_at)
    else
      zput('due', id, now + hold)
      zput('held', id, now + hold)
    end
    found[i] = with_runs(id)
  end
  flush()
  local heads = call('ZRANGE', P .. 'due', 0, known, 'WITHSCORES')
  for i = 1, #heads, 2 do
    if not early[heads[i]] then
      return { now, tonumber(heads[i + 1]), found }
    end
  end
  return { now, false, found }
end

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
      found[#found + 1] = with_runs(id)
    end
  end
  flush()
  return { now, false, found }
end

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

-- Put parked runs whose gate has room back among the claimable ones.
local function gates()
  local names = call('SMEMBERS', P .. 'parked')
  local freed = {}
  table.sort(names)
  hload('gate', names)
  for _, name in ipairs(names) do
    local g = gate_of(name)
    local most = math.min(g and room(g, now) or limit, limit - #freed)
    if most > 0 then
      for _, id in ipairs(call('ZRANGE', P .. 'park:' .. name, 0, most - 1)) do
        freed[#freed + 1] = id
      end
    end
  end
  hload('run', freed)
  for _, id in ipairs(freed) do
    local r = run_of(id)
    leave(r)
    r.parked = nil
    enter(r)
    save_run(r)
  end
  flush()
  return { now, false, #freed }
end

if limit <= 0 then
  return { now, false, agenda == 'gates' and 0 or {} }
end
return ({ schedules = schedules, touched = touched, expired = expired, gates = gates })[agenda]()
