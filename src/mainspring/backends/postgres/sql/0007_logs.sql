-- The logs of runs: lines that handlers wrote. run_log has a row for each run with a log; log_total has one row, with
-- the number of the last line and the bytes of all logs.

CREATE TABLE §run_log (
    run_id text COLLATE "C" PRIMARY KEY,
    bytes  bigint NOT NULL,
    is_cut boolean NOT NULL
);

CREATE TABLE §log_line (
    run_id  text COLLATE "C" NOT NULL,
    n       bigint NOT NULL,
    attempt integer NOT NULL,
    at      bigint NOT NULL,
    level   text COLLATE "C" NOT NULL,
    source  text COLLATE "C" NOT NULL,
    text    text COLLATE "C" NOT NULL,
    PRIMARY KEY (run_id, n)
);

CREATE TABLE §log_total (
    n     bigint NOT NULL,
    bytes bigint NOT NULL
);

INSERT INTO §log_total (n, bytes) VALUES (0, 0);
