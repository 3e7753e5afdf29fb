-- Indexes for retention, which searches ended runs, notes, deleted schedules and payloads without a reference.

CREATE INDEX run_ended ON §run (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX run_body ON §run (body) WHERE body IS NOT NULL;
CREATE INDEX event_note ON §event (at) WHERE n IS NULL;
CREATE INDEX schedule_deleted ON §schedule (updated_at) WHERE state = 'deleted';
CREATE INDEX schedule_body ON §schedule (body) WHERE body IS NOT NULL;
