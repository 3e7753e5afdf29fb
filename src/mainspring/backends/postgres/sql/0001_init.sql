-- The first schema: the event log, its projections (runs and schedules), and the other tables.
-- § stands for the schema's name. Texts compare byte by byte (COLLATE "C"), so that every server orders them alike.

CREATE TABLE §event (
    seq         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          bigint NOT NULL,
    epoch       integer,
    attempt     integer,
    n           integer,
    v           smallint NOT NULL,
    type        text COLLATE "C" NOT NULL,
    ns          text COLLATE "C" NOT NULL,
    schedule_id text COLLATE "C",
    run_id      text COLLATE "C",
    actor       text COLLATE "C",
    change      text COLLATE "C",
    owner       text COLLATE "C",
    data        text COLLATE "C"
);

CREATE UNIQUE INDEX event_of_run ON §event (run_id, n) WHERE run_id IS NOT NULL;
CREATE UNIQUE INDEX event_of_schedule ON §event (schedule_id, n) WHERE run_id IS NULL AND schedule_id IS NOT NULL;

CREATE TABLE §run (
    fire_time   bigint,
    due_at      bigint NOT NULL,
    ready_at    bigint NOT NULL,
    began_at    bigint,
    ms          bigint,
    created_at  bigint NOT NULL,
    started_at  bigint,
    ended_at    bigint,
    lease_until bigint,
    held_until  bigint NOT NULL DEFAULT 0,
    revision    integer,
    priority    integer NOT NULL,
    n           integer NOT NULL,
    epoch       integer NOT NULL,
    attempt     integer NOT NULL,
    failures    integer NOT NULL,
    crashes     integer NOT NULL,
    catch_up    boolean NOT NULL,
    dead        boolean NOT NULL,
    id          text COLLATE "C" PRIMARY KEY,
    ns          text COLLATE "C" NOT NULL,
    schedule_id text COLLATE "C",
    task        text COLLATE "C" NOT NULL,
    origin      text COLLATE "C" NOT NULL,
    fire_key    text COLLATE "C",
    lane        text COLLATE "C" NOT NULL,
    gates       text COLLATE "C",
    unique_key  text COLLATE "C",
    body        text COLLATE "C",
    options     text COLLATE "C",
    state       text COLLATE "C" NOT NULL,
    cancel      text COLLATE "C",
    reason      text COLLATE "C",
    result      text COLLATE "C",
    error       text COLLATE "C",
    owner       text COLLATE "C",
    parked_on   text COLLATE "C",
    progress    text COLLATE "C"
) WITH (
    -- Leaves room for the next version of a row on the same page.
    fillfactor = 80,
    -- A claim reads past the index entries of rows that were claimed before. Frequent vacuums keep these few.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- The engine's indexes contain open runs only, so their size does not depend on the history.
CREATE UNIQUE INDEX run_fire ON §run (schedule_id, fire_key) WHERE schedule_id IS NOT NULL;
CREATE UNIQUE INDEX run_unique ON §run (ns, unique_key) WHERE unique_key IS NOT NULL AND ended_at IS NULL;
CREATE INDEX run_claim ON §run (lane, priority, ready_at, id)
    WHERE state IN ('waiting', 'retrying') AND parked_on IS NULL;
CREATE INDEX run_running ON §run (owner) WHERE state = 'running';
CREATE INDEX run_open_of_schedule ON §run (schedule_id, id) WHERE ended_at IS NULL AND schedule_id IS NOT NULL;
CREATE INDEX run_of_schedule ON §run (schedule_id, id) WHERE schedule_id IS NOT NULL;
CREATE INDEX run_parked ON §run (parked_on, priority, ready_at, id) WHERE parked_on IS NOT NULL;
CREATE INDEX run_dead ON §run (id) WHERE dead;

CREATE TABLE §schedule (
    anchor     bigint NOT NULL,
    cursor     bigint NOT NULL,
    next_at    bigint,
    until      bigint,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    held_until bigint NOT NULL DEFAULT 0,
    touched    integer NOT NULL DEFAULT 0,
    n          integer NOT NULL,
    revision   integer NOT NULL,
    fired      bigint NOT NULL,
    id         text COLLATE "C" PRIMARY KEY,
    ns         text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    origin     text COLLATE "C" NOT NULL,
    app        text COLLATE "C" NOT NULL,
    version    text COLLATE "C" NOT NULL,
    digest     text COLLATE "C" NOT NULL,
    spec       text COLLATE "C" NOT NULL,
    body       text COLLATE "C",
    state      text COLLATE "C" NOT NULL,
    reason     text COLLATE "C"
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE UNIQUE INDEX schedule_name ON §schedule (ns, name) WHERE state <> 'deleted';
CREATE INDEX schedule_next ON §schedule (next_at, id) WHERE next_at IS NOT NULL AND state NOT IN ('finished', 'deleted');
CREATE INDEX schedule_app ON §schedule (app, id) WHERE app <> '';
CREATE INDEX schedule_touched ON §schedule (id) WHERE touched > 0;

CREATE TABLE §span (
    sid         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id text COLLATE "C" NOT NULL,
    revision    integer NOT NULL,
    after       bigint NOT NULL,
    through     bigint NOT NULL,
    count       bigint NOT NULL,
    reason      text COLLATE "C" NOT NULL,
    ns          text COLLATE "C" NOT NULL
);

CREATE INDEX span_of_schedule ON §span (schedule_id, through, after);
CREATE INDEX span_through ON §span (through);

CREATE TABLE §body (
    id   text COLLATE "C" PRIMARY KEY,
    data text COLLATE "C" NOT NULL
);

CREATE TABLE §gate (
    name         text COLLATE "C" PRIMARY KEY,
    max          integer NOT NULL,
    held         integer NOT NULL,
    closed_until bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE §lease (
    name       text COLLATE "C" PRIMARY KEY,
    owner      text COLLATE "C" NOT NULL,
    epoch      integer NOT NULL,
    expires_at bigint NOT NULL,
    renewed_at bigint NOT NULL,
    data       text COLLATE "C",
    live       boolean NOT NULL
) WITH (fillfactor = 50);

-- Rows with an empty schedule_id count runs without a schedule, and take over the counts of schedules that retention
-- removed.
CREATE TABLE §tally (
    schedule_id text COLLATE "C" NOT NULL,
    day         integer NOT NULL,
    outcome     text COLLATE "C" NOT NULL,
    count       bigint NOT NULL,
    PRIMARY KEY (schedule_id, day, outcome)
);
