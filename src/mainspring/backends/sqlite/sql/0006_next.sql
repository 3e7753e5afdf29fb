-- The id was two thirds of the index, and each schedule that is added or fires writes an entry at another place of it.
-- Without it, schedules of one instant are ordered by row number, that is, by age.

DROP INDEX schedule_next;
CREATE INDEX schedule_next ON schedule (next_at) WHERE next_at IS NOT NULL AND state NOT IN ('finished', 'deleted');
