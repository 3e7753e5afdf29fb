-- The first schema: the event log, its two projections (run, schedule), and the tables that no event describes.
-- `mark` is a number of the change that wrote a row last: `apply` finds out with it which guards held.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE event (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    ns          TEXT NOT NULL,
    schedule_id TEXT,
    rid         INTEGER,
    run_ref     TEXT,
    n           INTEGER,
    type        TEXT NOT NULL,
    v           INTEGER NOT NULL,
    actor       TEXT,
    change      TEXT,
    epoch       INTEGER,
    attempt     INTEGER,
    owner       TEXT,
    data        TEXT
);

-- A run's events are found by its row number. `run_ref`, the run's id, is stored with its first event, so that the log
-- can be read after the row was removed.
CREATE UNIQUE INDEX event_of_run ON event (rid, n) WHERE rid IS NOT NULL;
CREATE UNIQUE INDEX event_of_schedule ON event (schedule_id, n) WHERE rid IS NULL AND schedule_id IS NOT NULL;
CREATE INDEX event_of_absent_run ON event (run_ref) WHERE rid IS NULL AND run_ref IS NOT NULL;

-- AUTOINCREMENT never reuses a row number: the log still refers to runs whose row was removed.
CREATE TABLE run (
    rid         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL,
    ns          TEXT NOT NULL,
    schedule_id TEXT,
    task        TEXT NOT NULL,
    origin      TEXT NOT NULL,
    fire_time   INTEGER,
    fire_key    TEXT,
    revision    INTEGER,
    catch_up    INTEGER NOT NULL,
    lane        TEXT NOT NULL,
    priority    INTEGER NOT NULL,
    gates       TEXT,
    unique_key  TEXT,
    body        TEXT,
    options     TEXT,
    state       TEXT NOT NULL,
    n           INTEGER NOT NULL,
    due_at      INTEGER NOT NULL,
    ready_at    INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    failures    INTEGER NOT NULL,
    crashes     INTEGER NOT NULL,
    cancel      TEXT,
    reason      TEXT,
    result      TEXT,
    error       TEXT,
    began_at    INTEGER,
    ms          INTEGER,
    created_at  INTEGER NOT NULL,
    started_at  INTEGER,
    ended_at    INTEGER,
    dead        INTEGER NOT NULL,
    owner       TEXT,
    lease_until INTEGER,
    parked_on   TEXT,
    progress    TEXT,
    mark        INTEGER
);

-- The indexes of open runs test `ended_at IS NULL`: a claim changes `state`, and must then rewrite each index with it.
CREATE UNIQUE INDEX run_id ON run (id);
CREATE UNIQUE INDEX run_fire ON run (schedule_id, fire_key) WHERE schedule_id IS NOT NULL;
CREATE UNIQUE INDEX run_unique ON run (ns, unique_key) WHERE unique_key IS NOT NULL AND ended_at IS NULL;
CREATE INDEX run_claim ON run (lane, priority, ready_at, id, task)
    WHERE state IN ('waiting', 'retrying') AND parked_on IS NULL;
CREATE INDEX run_open ON run (id) WHERE ended_at IS NULL;
CREATE INDEX run_open_of_schedule ON run (schedule_id, id) WHERE ended_at IS NULL AND schedule_id IS NOT NULL;
CREATE INDEX run_of_schedule ON run (schedule_id, id) WHERE schedule_id IS NOT NULL;
CREATE INDEX run_lease ON run (ifnull(lease_until, 0), owner) WHERE state = 'running';
CREATE INDEX run_parked ON run (parked_on, priority, ready_at, id) WHERE parked_on IS NOT NULL;
CREATE INDEX run_ended ON run (dead, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX run_dead ON run (id) WHERE dead = 1;
CREATE INDEX run_body ON run (body) WHERE body IS NOT NULL;

CREATE TABLE schedule (
    sid        INTEGER PRIMARY KEY,
    id         TEXT NOT NULL,
    ns         TEXT NOT NULL,
    name       TEXT NOT NULL,
    owner      TEXT NOT NULL,
    origin     TEXT NOT NULL,
    app        TEXT NOT NULL,
    version    TEXT NOT NULL,
    digest     TEXT NOT NULL,
    spec       TEXT NOT NULL,
    body       TEXT,
    state      TEXT NOT NULL,
    n          INTEGER NOT NULL,
    revision   INTEGER NOT NULL,
    anchor     INTEGER NOT NULL,
    cursor     INTEGER NOT NULL,
    next_at    INTEGER,
    fired      INTEGER NOT NULL,
    reason     TEXT,
    until      INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    touched    INTEGER NOT NULL DEFAULT 0,
    mark       INTEGER
);

CREATE UNIQUE INDEX schedule_id ON schedule (id);
CREATE UNIQUE INDEX schedule_name ON schedule (ns, name) WHERE state <> 'deleted';
CREATE INDEX schedule_next ON schedule (next_at, id) WHERE next_at IS NOT NULL AND state NOT IN ('finished', 'deleted');
CREATE INDEX schedule_app ON schedule (app, id) WHERE app <> '';
CREATE INDEX schedule_touched ON schedule (id) WHERE touched > 0;
CREATE INDEX schedule_body ON schedule (body) WHERE body IS NOT NULL;

CREATE TABLE span (
    schedule_id TEXT NOT NULL,
    revision    INTEGER NOT NULL,
    "after"     INTEGER NOT NULL,
    through     INTEGER NOT NULL,
    count       INTEGER NOT NULL,
    reason      TEXT NOT NULL,
    ns          TEXT NOT NULL
);

CREATE INDEX span_of_schedule ON span (schedule_id, through, "after");
CREATE INDEX span_through ON span (through);

CREATE TABLE body (
    id   TEXT PRIMARY KEY,
    data TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE gate (
    name         TEXT PRIMARY KEY,
    max          INTEGER NOT NULL,
    held         INTEGER NOT NULL,
    closed_until INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE lease (
    name       TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    epoch      INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    data       TEXT,
    live       INTEGER NOT NULL
) WITHOUT ROWID;

-- schedule_id '' means "of no schedule".
CREATE TABLE tally (
    schedule_id TEXT NOT NULL,
    day         INTEGER NOT NULL,
    outcome     TEXT NOT NULL,
    count       INTEGER NOT NULL,
    PRIMARY KEY (schedule_id, day, outcome)
) WITHOUT ROWID;
