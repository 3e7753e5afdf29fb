-- A purge finds notes and deleted schedules by their age. Both are few, so these indexes cost next to nothing.

CREATE INDEX event_note ON event (at) WHERE n IS NULL;
CREATE INDEX schedule_deleted ON schedule (updated_at) WHERE state = 'deleted';
