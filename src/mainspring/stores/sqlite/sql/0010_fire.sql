-- A fire is found by both its columns, and fires of one moment stand side by side when its time comes first: what is
-- planned together is written to one page instead of one for each schedule.

DROP INDEX run_fire;
CREATE UNIQUE INDEX run_fire ON run (fire_key, schedule_id) WHERE schedule_id IS NOT NULL;
