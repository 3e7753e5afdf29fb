-- Append lines to the logs of the runs that exist, and remove the logs of the oldest runs beyond the limit of all logs.
-- `rules/run_logs.py` has the rules.
-- KEYS[1]: prefix. ARGV: most bytes of one log, most bytes of all logs, most logs to remove, size of the line that says
-- that a log was cut, its level, its source, its text; then for each line: run id, size, {attempt, at, level, source,
-- text}
-- A log's size: {bytes, whether it was cut}.
local max_run, max_total, max_removed = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local total = redis.call('HMGET', KEYS[1] .. 'logged:total', 'n', 'bytes')
local n, bytes = tonumber(total[1] or 0), tonumber(total[2] or 0)
local sizes, grown = {}, {}

local function log_size(run)
  if redis.call('HEXISTS', KEYS[1] .. 'run', run) == 0 then return false end
  local packed = redis.call('HGET', KEYS[1] .. 'logged', run)
  return packed and cmsgpack.unpack(packed) or { 0, false }
end

for i = 8, #ARGV, 3 do
  local run, size, line = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  if sizes[run] == nil then sizes[run] = log_size(run) end
  local log = sizes[run]
  if log and not log[2] then
    if log[1] + size > max_run then
      local old = cmsgpack.unpack(line)
      log[2], size, line = true, tonumber(ARGV[4]), cmsgpack.pack({ old[1], old[2], ARGV[5], ARGV[6], ARGV[7] })
    end
    n = n + 1
    redis.call('XADD', KEYS[1] .. 'lines:' .. run, string.format('%d-0', n), 'line', line)
    log[1], bytes, grown[run] = log[1] + size, bytes + size, log
  end
end
if not next(grown) then return end
for run, log in pairs(grown) do
  redis.call('HSET', KEYS[1] .. 'logged', run, cmsgpack.pack(log))
  redis.call('ZADD', KEYS[1] .. 'logged:runs', 0, run)
end
if bytes > max_total then
  for _, run in ipairs(redis.call('ZRANGE', KEYS[1] .. 'logged:runs', 0, max_removed - 1)) do
    if bytes <= max_total then break end
    bytes = bytes - cmsgpack.unpack(redis.call('HGET', KEYS[1] .. 'logged', run))[1]
    redis.call('DEL', KEYS[1] .. 'lines:' .. run)
    redis.call('HDEL', KEYS[1] .. 'logged', run)
    redis.call('ZREM', KEYS[1] .. 'logged:runs', run)
  end
end
redis.call('HSET', KEYS[1] .. 'logged:total', 'n', string.format('%d', n), 'bytes', string.format('%d', bytes))
