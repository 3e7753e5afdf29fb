-- Gates that refuse runs although they have no holder; there is hardly ever one. If a gate is neither here nor in
-- gate_held, a claim need not read its limit, which among a million schedules is on a page that is not in memory.

CREATE INDEX gate_shut ON gate_limit (name) WHERE closed_until > 0 OR max < 1;
