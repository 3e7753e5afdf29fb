-- A run's progress line, if the lease still holds. ARGV: id, epoch, text
local r = run_of(ARGV[1])
if not r or r.state ~= 'running' or r.epoch ~= tonumber(ARGV[2]) then
  return 0
end
r.progress = ARGV[3]
save_run(r)
flush()
return 1
