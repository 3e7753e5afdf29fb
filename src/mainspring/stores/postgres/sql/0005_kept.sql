-- Beside the log: secrets, hashed keys, answers already given. No event carries any of it.

CREATE TABLE §kept (
    kind       text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    data       text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    PRIMARY KEY (kind, id)
);

CREATE INDEX kept_expiring ON §kept (expires_at) WHERE expires_at IS NOT NULL;
