-- People search the few runs that ended unsuccessfully. The index spares the search from reading all successful runs.

CREATE INDEX run_unhappy ON §run (id) WHERE state IN ('failed', 'lost', 'cancelled', 'skipped');
