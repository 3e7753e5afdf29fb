-- Part of a script: claim due runs for a worker, by priority, then time, if their gates have room. The entry point is
-- `claim`. A run that crashed before is claimed alone: if it kills its worker again, few other runs are lost with the
-- worker and count a crash.

local STARTED, PACKED_NIL = pack(nil, 'RunStarted', 1, nil), pack(nil)
local MAX_FAST_CLAIM = MAX_ARGS / 2 -- most runs in one claim of the fast path: a command takes two values for each

local function to_set(values)
  local set = {}
  for _, value in ipairs(values) do
    set[value] = true
  end
  return set
end

-- Return names of non-empty queues, among them all queues that the offer covers. The search takes the shorter way: it
-- reads the names of all queues, or tests every name that the offer can have.
local function existing_queues(lanes, tasks)
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
  for at = 1, #names, MAX_ARGS do
    local last = math.min(at + MAX_ARGS - 1, #names)
    for i, is_there in ipairs(call('SMISMEMBER', key, unpack(names, at, last))) do
      if is_there == 1 then
        found[#found + 1] = names[at + i - 1]
      end
    end
  end
  return found
end

-- Return priority → keys of the non-empty queues of the offered lanes and tasks.
local function offered_queues(lanes, tasks)
  local found = { [0] = {}, {}, {}, {} }
  if #lanes == 0 or #tasks == 0 then
    return found
  end
  local names = existing_queues(lanes, tasks)
  lanes, tasks = to_set(lanes), to_set(tasks)
  for _, name in ipairs(names) do
    local lane, priority, task = string.match(name, '^([^%z]*)%z(%d)%z(.*)$')
    if lane and lanes[lane] and tasks[task] and found[tonumber(priority)] then
      table.insert(found[tonumber(priority)], P .. 'queue:' .. name)
    end
  end
  return found
end

-- Return true if the pair {score, id} `a` comes before the pair `b`.
local function comes_before(a, b)
  if a[1] ~= b[1] then
    return a[1] < b[1]
  end
  return a[2] < b[2]
end

-- Return the ids of the first `enough` runs that are due at `now`, by priority, then time; and the key of each run's
-- queue.
local function first_due(queues, now, enough)
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
      table.sort(due, comes_before)
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

-- Return those of the ids whose runs may be claimed at `now` under an offer of these lanes and tasks, by priority, then
-- time.
local function claimable_among(ids, lanes, tasks, now)
  local due, found = {}, {}
  lanes, tasks = to_set(lanes), to_set(tasks)
  hload('run', ids)
  for id in pairs(to_set(ids)) do
    local r = load_run(id)
    if r and (r.state == 'waiting' or r.state == 'retrying') and not r.parked and r.ready <= now then
      load_head(r)
      if lanes[r.lane] and tasks[r.task] and r.priority >= 0 and r.priority <= 3 then
        due[#due + 1] = { parking_score(r), id }
      end
    end
  end
  table.sort(due, comes_before)
  for i, one in ipairs(due) do
    found[i] = one[2]
  end
  return found
end

-- Return the name of a gate that does not admit this run now, or nil. A gate admits no run that comes after its first
-- parked run. `first` is a cache: gate → {score, id} of its first parked run, or false.
local function blocking_gate(r, now, first)
  for _, name in ipairs(load_head(r).gates) do
    local g = load_gate(name)
    if g and free_places(g, now) <= 0 then
      return name
    end
    if first[name] == nil then
      local head = call('ZRANGE', P .. 'park:' .. name, 0, 0, 'WITHSCORES')
      first[name] = head[1] and { tonumber(head[2]), head[1] } or false
    end
    if first[name] and comes_before(first[name], { parking_score(r), r.id }) then
      return name
    end
  end
end

local function has_gates(r)
  return bit.band(r.flags, HAS_GATES) ~= 0
end

-- Let up to `limit` runs enter their gates, in the order of the ids; return the admitted runs. A run that is not
-- admitted is parked at the gate that refused it. A run that crashed before is admitted alone.
local function admit_runs(ids, limit, now)
  local taken, first = {}, {}
  for _, id in ipairs(ids) do
    local r = load_run(id)
    if #taken >= limit or (#taken > 0 and (r.crashes > 0 or taken[1].crashes > 0)) then
      break
    end
    local gate = has_gates(r) and blocking_gate(r, now, first)
    if gate then
      unindex_run(r)
      r.parked = gate
      index_run(r)
      save_run(r)
    else
      if has_gates(r) then
        for _, name in ipairs(r.gates) do
          local g = load_gate(name)
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

-- Return the earliest ready time in the offered queues, or false if they are empty. The time may be past.
local function next_ready_at(queues)
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

-- Fast path: claim runs without gates. Rows are cut and joined as bytes instead of decoded and encoded.
-- due: ids of runs; from: the key of each run's queue; answer: the answer of `claim`, to which the runs are added.
-- Returns the answer, or nil, with nothing written, if one of the runs has gates or crashed before.
local function claim_ungated(due, from, now, offer, answer)
  local owner, lease = offer[1], now + offer[4]
  local found = call('HMGET', P .. 'run', unpack(due))
  local at_once, packed_owner, owner_bytes = pack(now), pack(owner, nil), #owner
  local new_rows, blocks, lease_scores, taken_by_queue, of_schedules = {}, {}, {}, {}, {}
  local seq = log_end()
  local first, block = seq, floor((seq + 1) / BLOCK_EVENTS)
  local bodies
  local events = {}
  blocks[block] = events
  for i = 1, #due do
    local row, id = found[i], due[i]
    local flags, _, crashes, n, epoch, attempt, head, ident, body_at, _, trail, due_at, ready, _, _, _, created =
      struct.unpack(HEADER, row)
    if crashes > 0 or flags % 2 == HAS_GATES then
      return nil
    end
    local trail_end, started, at = HEADER_BYTES + trail, now, at_once
    if ready > now then
      started, at = ready, pack(ready)
    end
    n, epoch, attempt, seq = n + 1, epoch + 1, attempt + 1, seq + 1
    row = struct.pack(
      HEADER, flags, RUNNING, 0, n, epoch, attempt, head, ident, body_at, owner_bytes, trail + 6, due_at, ready,
      started, NEVER, lease, created
    ) .. owner .. sub(row, HEADER_BYTES + 1, trail_end) .. struct.pack('>I6', seq) .. sub(row, trail_end + 1)
    new_rows[2 * i - 1], new_rows[2 * i] = id, row
    lease_scores[2 * i - 1], lease_scores[2 * i] = lease, id
    trail_end = trail_end + owner_bytes + 6
    if floor(seq / BLOCK_EVENTS) ~= block then
      block = floor(seq / BLOCK_EVENTS)
      events = {}
      blocks[block] = events
    end
    events[#events + 1] = format('%d', seq)
    events[#events + 1] = at .. pack(n) .. STARTED .. sub(row, trail_end + 1, trail_end + ident)
      .. pack(epoch, attempt) .. packed_owner
    local queue = taken_by_queue[from[i]]
    if not queue then
      queue = {}
      taken_by_queue[from[i]] = queue
    end
    queue[#queue + 1] = id
    if flags >= HAS_SCHEDULE then
      local _, _, _, sid = unpack_limit(row, 3, trail_end)
      if sid then
        of_schedules[#of_schedules + 1] = sid
        of_schedules[#of_schedules + 1] = id
      end
    end
    local body = false
    if sub(row, trail_end + body_at + 1, trail_end + body_at + 1) ~= PACKED_NIL then
      _, body = unpack_limit(row, 1, trail_end + body_at)
      bodies = true
    end
    answer[2 * i + 1], answer[2 * i + 2] = row, body
  end
  call('DEL', P .. 'none')
  call('INCRBY', P .. 'seq', seq - first)
  last_seq, first_seq = seq, seq
  call_in_chunks('HSET', P .. 'run', new_rows)
  for number, values in pairs(blocks) do
    if #values > 0 then
      local name = format('%d', number)
      call_in_chunks('HSET', P .. 'log:' .. name, values)
      call('ZADD', P .. 'blocks', number, name)
    end
  end
  call_in_chunks('ZADD', P .. 'own:' .. owner, lease_scores)
  call('SADD', P .. 'owners', owner)
  for key, ids in pairs(taken_by_queue) do
    call_in_chunks('ZREM', key, ids)
    if call('EXISTS', key) == 0 then
      call('SREM', P .. 'queues', sub(key, #P + 7))
    end
  end
  for i = 1, #of_schedules, 2 do
    call('ZADD', P .. 'open:' .. of_schedules[i], 1, of_schedules[i + 1])
  end
  if bodies then
    for i = 4, #answer, 2 do
      answer[i] = answer[i] and hget('body', answer[i])
    end
  end
  return answer
end

-- Return those of the ids, in their order, whose runs are due, or may be claimed ahead of their time. These are runs
-- that never crashed and have no gate but their own schedule's, so that an early claim delays no other work.
local function claimable_ahead(ids, now)
  local found = {}
  hload('run', ids)
  for _, id in ipairs(ids) do
    local r = load_run(id)
    local allowed = r.ready <= now or r.crashes == 0
    if allowed and r.ready > now and has_gates(r) then
      for _, name in ipairs(load_head(r).gates) do
        allowed = allowed and sub(name, 1, 9) == 'schedule:'
      end
    end
    if allowed then
      found[#found + 1] = id
    end
  end
  return found
end

-- Slow path: claim at most `limit` of the runs with these ids through their gates, and add the claimed runs to the
-- answer of `claim`.
local function claim_gated(due, limit, now, offer, answer)
  local owner, lease = offer[1], now + offer[4]
  local packed_owner = pack(owner, nil)
  hload('run', due)
  for i, r in ipairs(admit_runs(due, limit, now)) do
    unindex_run(r)
    r.state, r.epoch, r.attempt = 'running', r.epoch + 1, r.attempt + 1
    r.owner, r.lease, r.started = owner, lease, math.max(now, r.ready)
    append_run_event(r, pack(r.started), STARTED .. sub(r.head, 1, r.ident) .. pack(r.epoch, r.attempt) .. packed_owner)
    index_run(r)
    save_run(r)
    local _, body = unpack_limit(r.head, 1, r.body_at)
    answer[2 * i + 1], answer[2 * i + 2] = hget('run', r.id), body and hget('body', body) or false
  end
  flush()
end

-- Claim at most `limit` runs. offer: {owner, lanes, tasks, ttl, ahead}; ids: the only runs to claim, {}: any run.
-- Returns {now, next ready time or false, row, payload or false, row, …}.
local function claim(now, offer, limit, ids)
  local queues = offered_queues(offer[2], offer[3])
  local answer = { now, false }
  if limit > 0 then
    if #ids > 0 then
      claim_gated(claimable_among(ids, offer[2], offer[3], now), limit, now, offer, answer)
    else
      local due, from = first_due(queues, now + offer[5], math.min(limit, MAX_FAST_CLAIM))
      if #due > 0 and not claim_ungated(due, from, now, offer, answer) then
        answer = { now, false }
        due = first_due(queues, now + offer[5], 4 * limit) -- gates may refuse some, so read more than `limit`
        claim_gated(offer[5] > 0 and claimable_ahead(due, now) or due, limit, now, offer, answer)
      end
    end
  end
  answer[2] = next_ready_at(queues)
  return answer
end
