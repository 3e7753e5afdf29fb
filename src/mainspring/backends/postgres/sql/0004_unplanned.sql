-- Repair searches active schedules without a next fire time. The index spares it from reading all others.

CREATE INDEX schedule_unplanned ON §schedule (id) WHERE state = 'active' AND next_at IS NULL;
