-- Store a run's progress line, if its lease is still held.
-- KEYS[1]: prefix. ARGV: run id, epoch, text. Returns 1 if it was stored, else 0.
local r = load_run(ARGV[1])
if not r or r.state ~= 'running' or r.epoch ~= tonumber(ARGV[2]) then
  return 0
end
r.progress = ARGV[3]
save_run(r)
flush()
return 1
