-- A gate's limit hardly ever changes, its number of holders changes twice with every fire. In a table of its own, the
-- number of holders is on few pages, however many schedules there are: a gate without holders has no row there.

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
