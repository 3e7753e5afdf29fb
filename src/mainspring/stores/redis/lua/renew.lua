-- Extend leases that still hold. ARGV: now or '', {owner, ttl, ids, epochs}
-- {now, {kept id, cancel or false, …}, {rows of the owner's that were not named}}

local now = clock(ARGV[1])
local wanted = cmsgpack.unpack(ARGV[2])
local owner, ttl, ids, epochs = wanted[1], wanted[2], wanted[3], wanted[4]
local asked, kept, strays = {}, {}, {}
hload('run', ids)
for i, id in ipairs(ids) do
  asked[id] = true
  local r = run_of(id)
  if r and r.state == 'running' and r.owner == owner and r.epoch == epochs[i] and (r.lease or 0) > now then
    r.lease = now + ttl
    zput('own:' .. owner, id, r.lease)
    save_run(r)
    kept[#kept + 1] = id
    kept[#kept + 1] = r.cancel or false
  end
end
flush()
for _, id in ipairs(call('ZRANGE', P .. 'own:' .. owner, 0, -1)) do
  if not asked[id] then
    strays[#strays + 1] = hget('run', id)
  end
end
return { now, kept, strays }
