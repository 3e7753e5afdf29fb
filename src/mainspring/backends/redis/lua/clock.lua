-- Part of a script: the server's time in milliseconds, for scripts that need nothing else of common.lua.
-- `override`: a test's own time, '' otherwise.
local function current_time(override)
  if override ~= '' then return tonumber(override) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
