-- The repair of schedules reads active ones without a next fire. Mostly there is none, which must not cost a full scan.

CREATE INDEX schedule_unplanned ON schedule (id) WHERE state = 'active' AND next_at IS NULL;
