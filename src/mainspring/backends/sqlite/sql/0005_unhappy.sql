-- Runs that did not succeed are few and often listed: they must be found without reading the successful ones.

CREATE INDEX run_unhappy ON run (id) WHERE state IN ('failed', 'lost', 'cancelled', 'skipped');
