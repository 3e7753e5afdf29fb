-- Every query for a fire has both columns. With the time first, the fires of one instant are neighbours in the index:
-- fires that are planned together are written to one page instead of one page for each schedule.

DROP INDEX run_fire;
CREATE UNIQUE INDEX run_fire ON run (fire_key, schedule_id) WHERE schedule_id IS NOT NULL;
