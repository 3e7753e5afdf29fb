-- Renew leases of an owner on running runs. A lease that has ended is not renewed.
-- KEYS[1]: prefix. ARGV: now or '', {owner, ttl in ms, run ids, epochs}
-- Returns {now, {renewed id, cancel reason or false, …}, {rows of the owner's other running runs}}.

local now = current_time(ARGV[1])
local request = cmsgpack.unpack(ARGV[2])
local owner, ttl, ids, epochs = request[1], request[2], request[3], request[4]
local named, kept, strays = {}, {}, {}
hload('run', ids)
for i, id in ipairs(ids) do
  named[id] = true
  local r = load_run(id)
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
  if not named[id] then
    strays[#strays + 1] = hget('run', id)
  end
end
return { now, kept, strays }
