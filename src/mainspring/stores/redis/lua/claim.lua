-- ARGV: now or '', {offer, limit, ids}
local wanted = cmsgpack.unpack(ARGV[2])
return claim(clock(ARGV[1]), wanted[1], wanted[2], wanted[3])
