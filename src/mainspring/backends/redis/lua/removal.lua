-- Part of the scripts of retention: remove events, and count in tallies what was removed.

local DAY = 86400000
local touched_blocks, removed_seqs, deleted_keys, seen_tallies, tally_count = {}, {}, {}, {}, 0
local log_bytes_gone = 0

-- Remove an event without counting it in the note about this purge (`LogCompacted`).
local function drop_event(seq)
  hdel(block_key(seq), format('%d', seq))
  touched_blocks[floor(seq / BLOCK_EVENTS)] = true
end

-- Remove an event, and remember its number for the note about this purge.
local function remove_event(seq)
  drop_event(seq)
  removed_seqs[#removed_seqs + 1] = seq
end

-- Remove the log of a run, if it has one.
local function remove_log(run)
  local size = hget('logged', run)
  if size then
    hdel('logged', run)
    zdel('logged:runs', run)
    deleted_keys[#deleted_keys + 1] = 'lines:' .. run
    log_bytes_gone = log_bytes_gone + cmsgpack.unpack(size)[1]
  end
end

-- Send all writes, and remove emptied blocks from the list of the log's blocks.
local function flush_removals()
  for _, key in ipairs(deleted_keys) do
    call('DEL', P .. key)
  end
  flush()
  if log_bytes_gone > 0 then
    call('HINCRBY', P .. 'logged:total', 'bytes', -log_bytes_gone)
  end
  for block in pairs(touched_blocks) do
    if call('EXISTS', P .. 'log:' .. format('%d', block)) == 0 then
      call('ZREM', P .. 'blocks', format('%d', block))
    end
  end
end

-- Let `flush` list this schedule among the schedules with tallies. '' stands for runs without a schedule.
local function register_tally(schedule)
  registries.tallied = registries.tallied or {}
  registries.tallied[schedule] = 'tally:' .. schedule
end

-- Add `count` to a tally: by schedule ('' for runs without one), day and outcome.
local function add_tally(schedule, at, outcome, count)
  local key = 'tally:' .. schedule
  local field = format('%d', floor(at / DAY)) .. NUL .. outcome
  local name = key .. NUL .. field
  if not seen_tallies[name] then
    seen_tallies[name] = true
    tally_count = tally_count + 1
  end
  hput(key, field, format('%d', tonumber(hget(key, field) or 0) + count))
  register_tally(schedule)
end
