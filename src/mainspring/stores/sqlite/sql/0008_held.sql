-- A gate's limit hardly ever changes; how many runs hold it changes twice with every fire. Apart from each other, the
-- numbers are few rows on few pages, whatever the number of schedules: a gate that nobody holds has none.

CREATE TABLE gate_limit (
    name         TEXT PRIMARY KEY,
    max          INTEGER NOT NULL,
    closed_until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE gate_held (
    name TEXT PRIMARY KEY,
    held INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO gate_limit (name, max, closed_until) SELECT name, max, closed_until FROM gate ORDER BY name;
INSERT INTO gate_held (name, held) SELECT name, held FROM gate WHERE held > 0 ORDER BY name;
DROP TABLE gate;

CREATE VIEW gate AS
SELECT l.name, l.max, ifnull((SELECT h.held FROM gate_held h WHERE h.name = l.name), 0) AS held, l.closed_until
FROM gate_limit l;
