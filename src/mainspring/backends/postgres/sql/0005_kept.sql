-- Key-value entries beside the log: secrets, hashed keys, stored answers. No event contains any of them.

CREATE TABLE §kept (
    kind       text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    data       text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    PRIMARY KEY (kind, id)
);

CREATE INDEX kept_expiring ON §kept (expires_at) WHERE expires_at IS NOT NULL;
