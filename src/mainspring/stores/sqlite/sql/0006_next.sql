-- An id in it was two thirds of the index, and schedules that are added or fire write to it all over; ties go by age.

DROP INDEX schedule_next;
CREATE INDEX schedule_next ON schedule (next_at) WHERE next_at IS NOT NULL AND state NOT IN ('finished', 'deleted');
