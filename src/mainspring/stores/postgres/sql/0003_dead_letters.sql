-- Dead letters are kept: retention must not walk past them each time to find what may go.

DROP INDEX §run_ended;
CREATE INDEX run_ended ON §run (dead, ended_at) WHERE ended_at IS NOT NULL;
