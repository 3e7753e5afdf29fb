-- Repair looks for active schedules without a next time: it must not read a million others to find none.

CREATE INDEX schedule_unplanned ON §schedule (id) WHERE state = 'active' AND next_at IS NULL;
