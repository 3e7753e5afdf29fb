-- Who gets which runs: by priority, then time, through the gates; one that crashed before, alone.

local STARTED, NONE = pack(nil, 'RunStarted', 1, nil), pack(nil)
local MOST = ARGS / 2 -- so many at once

local function set_of(values)
  local set = {}
  for _, value in ipairs(values) do
    set[value] = true
  end
  return set
end

-- The names of queues that hold something: those that could be offered, or all, whichever are fewer.
local function candidates(lanes, tasks)
  local key, names = P .. 'queues', {}
  if call('SCARD', key) <= 4 * #lanes * #tasks then
    return call('SMEMBERS', key)
  end
  for _, lane in ipairs(lanes) do
    for _, task in ipairs(tasks) do
      for priority = 0, 3 do
        names[#names + 1] = lane .. NUL .. priority .. NUL .. task
      end
    end
  end
  local found = {}
  for at = 1, #names, ARGS do
    local last = math.min(at + ARGS - 1, #names)
    for i, is_there in ipairs(call('SMISMEMBER', key, unpack(names, at, last))) do
      if is_there == 1 then
        found[#found + 1] = names[at + i - 1]
      end
    end
  end
  return found
end

-- The queues that hold what is offered, by priority.
local function offered(lanes, tasks)
  local found = { [0] = {}, {}, {}, {} }
  if #lanes == 0 or #tasks == 0 then
    return found
  end
  local names = candidates(lanes, tasks)
  lanes, tasks = set_of(lanes), set_of(tasks)
  for _, name in ipairs(names) do
    local lane, priority, task = string.match(name, '^([^%z]*)%z(%d)%z(.*)$')
    if lane and lanes[lane] and tasks[task] and found[tonumber(priority)] then
      table.insert(found[tonumber(priority)], P .. 'queue:' .. name)
    end
  end
  return found
end

local function earlier(a, b)
  if a[1] ~= b[1] then
    return a[1] < b[1]
  end
  return a[2] < b[2]
end

-- The ids of the first `enough` due runs, in order; and the queue each comes from.
local function heads(queues, now, enough)
  local found, from = {}, {}
  for priority = 0, 3 do
    local keys = queues[priority]
    if #keys == 1 then
      for _, id in ipairs(call('ZRANGEBYSCORE', keys[1], '-inf', now, 'LIMIT', 0, enough - #found)) do
        found[#found + 1] = id
        from[#found] = keys[1]
      end
    elseif #keys > 1 then
      local due = {}
      for _, key in ipairs(keys) do
        local part = call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES', 'LIMIT', 0, enough - #found)
        for i = 1, #part, 2 do
          due[#due + 1] = { tonumber(part[i + 1]), part[i], key }
        end
      end
      table.sort(due, earlier)
      for i = 1, math.min(#due, enough - #found) do
        found[#found + 1] = due[i][2]
        from[#found] = due[i][3]
      end
    end
    if #found >= enough then
      break
    end
  end
  return found, from
end

-- Of the runs that were asked for, those that could be claimed, in order.
local function named(ids, lanes, tasks, now)
  local due, found = {}, {}
  lanes, tasks = set_of(lanes), set_of(tasks)
  hload('run', ids)
  for id in pairs(set_of(ids)) do
    local r = run_of(id)
    if r and (r.state == 'waiting' or r.state == 'retrying') and not r.parked and r.ready <= now then
      born(r)
      if lanes[r.lane] and tasks[r.task] and r.priority >= 0 and r.priority <= 3 then
        due[#due + 1] = { place_of(r), id }
      end
    end
  end
  table.sort(due, earlier)
  for i, one in ipairs(due) do
    found[i] = one[2]
  end
  return found
end

-- The gate that refuses this run now, or nil.
local function refusing(r, now, first)
  for _, name in ipairs(born(r).gates) do
    local g = gate_of(name)
    if g and room(g, now) <= 0 then
      return name
    end
    if first[name] == nil then
      local head = call('ZRANGE', P .. 'park:' .. name, 0, 0, 'WITHSCORES')
      first[name] = head[1] and { tonumber(head[2]), head[1] } or false
    end
    if first[name] and earlier(first[name], { place_of(r), r.id }) then
      return name
    end
  end
end

local function has_gates(r)
  return bit.band(r.flags, HAS_GATES) ~= 0
end

-- The runs that pass, in order; those that do not are parked.
local function admit(ids, limit, now)
  local taken, first = {}, {}
  for _, id in ipairs(ids) do
    local r = run_of(id)
    if #taken >= limit or (#taken > 0 and (r.crashes > 0 or taken[1].crashes > 0)) then
      break
    end
    local gate = has_gates(r) and refusing(r, now, first)
    if gate then
      leave(r)
      r.parked = gate
      enter(r)
      save_run(r)
    else
      if has_gates(r) then
        for _, name in ipairs(r.gates) do
          local g = gate_of(name)
          if g then
            g.held = g.held + 1
            save_gate(g)
          end
        end
      end
      taken[#taken + 1] = r
    end
  end
  return taken
end

-- When the next offered run becomes claimable; what is due already counts as now.
local function next_ready(queues)
  local best = false
  for priority = 0, 3 do
    for _, key in ipairs(queues[priority]) do
      local head = call('ZRANGE', key, 0, 0, 'WITHSCORES')
      if head[1] then
        local at = tonumber(head[2])
        best = best and math.min(best, at) or at
      end
    end
  end
  return best
end

-- Runs that wait for nothing but a worker are taken as they are: rows are cut and put together, not read and written.
-- Nil, and nothing done, when one of them has gates or crashed before.
local function take(due, from, now, offer, answer)
  local owner, lease = offer[1], now + offer[4]
  local found = call('HMGET', P .. 'run', unpack(due))
  local at_once, by, owner_bytes = pack(now), pack(owner, nil), #owner
  local new, log, leases, gone, of = {}, {}, {}, {}, {}
  local seq = log_end()
  local first, block = seq, floor((seq + 1) / BLOCK)
  local bodies
  local events = {}
  log[block] = events
  for i = 1, #due do
    local row, id = found[i], due[i]
    local flags, _, crashes, n, epoch, attempt, head, ident, body_at, _, trail, due_at, ready, _, _, _, created =
      struct.unpack(HEADER, row)
    if crashes > 0 or flags % 2 == HAS_GATES then
      return nil
    end
    local t, started, at = HEADER_BYTES + trail, now, at_once
    if ready > now then
      started, at = ready, pack(ready)
    end
    n, epoch, attempt, seq = n + 1, epoch + 1, attempt + 1, seq + 1
    row = struct.pack(
      HEADER, flags, RUNNING, 0, n, epoch, attempt, head, ident, body_at, owner_bytes, trail + 6, due_at, ready, started,
      NEVER, lease, created
    ) .. owner .. sub(row, HEADER_BYTES + 1, t) .. struct.pack('>I6', seq) .. sub(row, t + 1)
    new[2 * i - 1], new[2 * i] = id, row
    leases[2 * i - 1], leases[2 * i] = lease, id
    t = t + owner_bytes + 6
    if floor(seq / BLOCK) ~= block then
      block = floor(seq / BLOCK)
      events = {}
      log[block] = events
    end
    events[#events + 1] = format('%d', seq)
    events[#events + 1] = at .. pack(n) .. STARTED .. sub(row, t + 1, t + ident) .. pack(epoch, attempt) .. by
    local queue = gone[from[i]]
    if not queue then
      queue = {}
      gone[from[i]] = queue
    end
    queue[#queue + 1] = id
    if flags >= HAS_SCHEDULE then
      local _, _, _, sid = unpack_limit(row, 3, t)
      if sid then
        of[#of + 1] = sid
        of[#of + 1] = id
      end
    end
    local body = false
    if sub(row, t + body_at + 1, t + body_at + 1) ~= NONE then
      _, body = unpack_limit(row, 1, t + body_at)
      bodies = true
    end
    answer[2 * i + 1], answer[2 * i + 2] = row, body
  end
  call('DEL', P .. 'none')
  call('INCRBY', P .. 'seq', seq - first)
  last_seq, first_seq = seq, seq
  in_parts('HSET', P .. 'run', new)
  for number, values in pairs(log) do
    if #values > 0 then
      local name = format('%d', number)
      in_parts('HSET', P .. 'log:' .. name, values)
      call('ZADD', P .. 'blocks', number, name)
    end
  end
  in_parts('ZADD', P .. 'own:' .. owner, leases)
  call('SADD', P .. 'owners', owner)
  for key, ids in pairs(gone) do
    in_parts('ZREM', key, ids)
    if call('EXISTS', key) == 0 then
      call('SREM', P .. 'queues', sub(key, #P + 7))
    end
  end
  for i = 1, #of, 2 do
    call('ZADD', P .. 'open:' .. of[i], 1, of[i + 1])
  end
  if bodies then
    for i = 4, #answer, 2 do
      answer[i] = answer[i] and hget('body', answer[i])
    end
  end
  return answer
end

-- Of these, in order, the ones that are due, or may be taken ahead of their time: those that keep nobody out but other
-- runs of their own schedule.
local function in_time(ids, now)
  local found = {}
  hload('run', ids)
  for _, id in ipairs(ids) do
    local r = run_of(id)
    local fits = r.ready <= now or r.crashes == 0
    if fits and r.ready > now and has_gates(r) then
      for _, name in ipairs(born(r).gates) do
        fits = fits and sub(name, 1, 9) == 'schedule:'
      end
    end
    if fits then
      found[#found + 1] = id
    end
  end
  return found
end

-- Through the gates, and one that crashed before alone.
local function take_some(due, limit, now, offer, answer)
  local owner, lease = offer[1], now + offer[4]
  local by = pack(owner, nil)
  hload('run', due)
  for i, r in ipairs(admit(due, limit, now)) do
    leave(r)
    r.state, r.epoch, r.attempt = 'running', r.epoch + 1, r.attempt + 1
    r.owner, r.lease, r.started = owner, lease, math.max(now, r.ready)
    move(r, pack(r.started), STARTED .. sub(r.head, 1, r.ident) .. pack(r.epoch, r.attempt) .. by)
    enter(r)
    save_run(r)
    local _, body = unpack_limit(r.head, 1, r.body_at)
    answer[2 * i + 1], answer[2 * i + 2] = hget('run', r.id), body and hget('body', body) or false
  end
  flush()
end

-- offer = {owner, lanes, tasks, ttl, ahead}; {now, next time or false, row, payload or false, row, …}
local function claim(now, offer, limit, ids)
  local queues = offered(offer[2], offer[3])
  local answer = { now, false }
  if limit > 0 then
    if #ids > 0 then
      take_some(named(ids, offer[2], offer[3], now), limit, now, offer, answer)
    else
      local due, from = heads(queues, now + offer[5], math.min(limit, MOST))
      if #due > 0 and not take(due, from, now, offer, answer) then
        answer = { now, false }
        due = heads(queues, now + offer[5], 4 * limit) -- some may not pass: look deeper
        take_some(offer[5] > 0 and in_time(due, now) or due, limit, now, offer, answer)
      end
    end
  end
  answer[2] = next_ready(queues)
  return answer
end
