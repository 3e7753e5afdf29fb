-- Retention keeps dead letters by default. With `dead` first in the index, it does not read past them in every step.

DROP INDEX §run_ended;
CREATE INDEX run_ended ON §run (dead, ended_at) WHERE ended_at IS NOT NULL;
