-- Entries beside the log, with secrets, hashed API keys and answers to requests. No event contains them.

CREATE TABLE kept (
    kind       TEXT NOT NULL,
    id         TEXT NOT NULL,
    data       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;

CREATE INDEX kept_expiring ON kept (expires_at) WHERE expires_at IS NOT NULL;
