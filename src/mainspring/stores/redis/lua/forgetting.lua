-- Taking events and rows out again; for retention.

local DAY = 86400000
local emptied, removed, doomed_keys, tallies, tallied = {}, {}, {}, {}, 0

local function forget_event(seq)
  hdel(block_of(seq), format('%d', seq))
  emptied[floor(seq / BLOCK)] = true
end

local function remove_event(seq)
  forget_event(seq)
  removed[#removed + 1] = seq
end

-- Write it all; blocks of the log that nothing is left of go, too.
local function finish()
  for _, key in ipairs(doomed_keys) do
    call('DEL', P .. key)
  end
  flush()
  for block in pairs(emptied) do
    if call('EXISTS', P .. 'log:' .. format('%d', block)) == 0 then
      call('ZREM', P .. 'blocks', format('%d', block))
    end
  end
end

local function on_roster(schedule)
  rosters.tallied = rosters.tallied or {}
  rosters.tallied[schedule] = 'tally:' .. schedule
end

-- Count what goes, by schedule (or nobody's), day and outcome.
local function tally(schedule, at, outcome, count)
  local key = 'tally:' .. schedule
  local field = format('%d', floor(at / DAY)) .. NUL .. outcome
  local name = key .. NUL .. field
  if not tallies[name] then
    tallies[name] = true
    tallied = tallied + 1
  end
  hput(key, field, format('%d', tonumber(hget(key, field) or 0) + count))
  on_roster(schedule)
end
