-- What did not end well is looked for by people, and is little: it must not be found by reading all that did.

CREATE INDEX run_unhappy ON §run (id) WHERE state IN ('failed', 'lost', 'cancelled', 'skipped');
