-- Beside the log: secrets, hashed keys, answers already given. No event carries any of it.

CREATE TABLE kept (
    kind       TEXT NOT NULL,
    id         TEXT NOT NULL,
    data       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;

CREATE INDEX kept_expiring ON kept (expires_at) WHERE expires_at IS NOT NULL;
