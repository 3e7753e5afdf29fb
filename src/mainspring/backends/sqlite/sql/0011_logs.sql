-- The logs of runs: lines that handlers wrote. run_log has a row for each run with a log; log_total has one row, with
-- the number of the last line and the bytes of all logs.

CREATE TABLE run_log (
    run_id TEXT PRIMARY KEY,
    bytes  INTEGER NOT NULL,
    is_cut INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE log_line (
    run_id  TEXT NOT NULL,
    n       INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    level   TEXT NOT NULL,
    source  TEXT NOT NULL,
    text    TEXT NOT NULL,
    PRIMARY KEY (run_id, n)
) WITHOUT ROWID;

CREATE TABLE log_total (
    n     INTEGER NOT NULL,
    bytes INTEGER NOT NULL
);

INSERT INTO log_total (n, bytes) VALUES (0, 0);
