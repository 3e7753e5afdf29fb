-- Who gets which runs: by priority, then time, through the gates; one that crashed before, alone.

local STARTED = pack(nil, 'RunStarted', 1, nil)

local function set_of(values)
  local set = {}
  for _, value in ipairs(values) do
    set[value] = true
  end
  return set
end

-- The queues that hold what is offered, by priority.
local function offered(lanes, tasks)
  local found = { [0] = {}, {}, {}, {} }
  lanes, tasks = set_of(lanes), set_of(tasks)
  for _, name in ipairs(call('SMEMBERS', P .. 'queues')) do
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

-- The ids of the first `enough` due runs, in order.
local function heads(queues, now, enough)
  local found = {}
  for priority = 0, 3 do
    local keys = queues[priority]
    if #keys == 1 then
      for _, id in ipairs(call('ZRANGEBYSCORE', keys[1], '-inf', now, 'LIMIT', 0, enough - #found)) do
        found[#found + 1] = id
      end
    elseif #keys > 1 then
      local due = {}
      for _, key in ipairs(keys) do
        local part = call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES', 'LIMIT', 0, enough - #found)
        for i = 1, #part, 2 do
          due[#due + 1] = { tonumber(part[i + 1]), part[i] }
        end
      end
      table.sort(due, earlier)
      for i = 1, math.min(#due, enough - #found) do
        found[#found + 1] = due[i][2]
      end
    end
    if #found >= enough then
      break
    end
  end
  return found
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

-- offer = {owner, lanes, tasks, ttl}; {now, next time or false, row, payload or false, row, …}
local function claim(now, offer, limit, ids)
  local owner, lanes, tasks, ttl = offer[1], offer[2], offer[3], offer[4]
  local queues = offered(lanes, tasks)
  local answer = { now, false }
  local taken = {}
  if limit > 0 then
    local due
    if #ids > 0 then
      due = named(ids, lanes, tasks, now)
    else
      due = heads(queues, now, limit)
      hload('run', due)
      for _, id in ipairs(due) do
        local r = run_of(id)
        if has_gates(r) or r.crashes > 0 then -- some may not pass: look deeper
          due = heads(queues, now, 4 * limit)
          hload('run', due)
          break
        end
      end
    end
    taken = admit(due, limit, now)
  end
  local at, by, bodies = pack(now), pack(owner, nil), {}
  for i, r in ipairs(taken) do
    leave(r)
    r.state, r.epoch, r.attempt = 'running', r.epoch + 1, r.attempt + 1
    r.owner, r.lease, r.started = owner, now + ttl, now
    move(r, at, STARTED .. sub(r.head, 1, r.ident) .. pack(r.epoch, r.attempt) .. by)
    enter(r)
    save_run(r)
    local _, body = unpack_limit(r.head, 1, r.body_at)
    if body then
      bodies[#bodies + 1] = body
    end
    answer[2 * i + 1], answer[2 * i + 2] = fields_of('run')[r.id], body or false
  end
  if #bodies > 0 then
    hload('body', bodies)
    for i = 4, #answer, 2 do
      answer[i] = answer[i] and hget('body', answer[i])
    end
  end
  flush()
  answer[2] = next_ready(queues)
  return answer
end
