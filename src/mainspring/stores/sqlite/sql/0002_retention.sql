-- Retention looks for notes and for deleted schedules by their age; both are few, so the indexes cost next to nothing.

CREATE INDEX event_note ON event (at) WHERE n IS NULL;
CREATE INDEX schedule_deleted ON schedule (updated_at) WHERE state = 'deleted';
