-- Gates that refuse although nobody holds them: hardly ever one. A claim that finds a gate neither here nor among the
-- held need not read its limit, which among a million schedules is on a page that nothing else has in memory.

CREATE INDEX gate_shut ON gate_limit (name) WHERE closed_until > 0 OR max < 1;
