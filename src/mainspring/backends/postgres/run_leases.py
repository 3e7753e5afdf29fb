"""Leases on claimed runs: extend the leases while the runs go on, and store progress lines of runs under a lease."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.backends.postgres.claim_sql import NO_RUN
from mainspring.backends.postgres.database import Database
from mainspring.backends.postgres.rows import (
    NOW_SQL,
    RUN_COLUMNS,
    RUN_FIELDS,
    STILL_RUNNING,
    read_run,
    run_columns,
    storable_text,
    unnest_columns,
)
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.ports.store import Renewed

_LEASE_COLUMNS = {"id": "text", "epoch": "integer"}
_EXTENDED = ", ".join(f"k.{name}" if name in ("id", "cancel") else f"NULL::{RUN_COLUMNS[name]}" for name in RUN_FIELDS)
#: Parameters: now, owner, ttl, ids of runs and their epochs in the order of ids. Returns three kinds of rows: the
#: instant ('t'), leases that were extended ('k'), and running runs of the owner whose ids were not sent ('s').
_RENEW = f"""
WITH t AS MATERIALIZED (SELECT {NOW_SQL} AS now),
k AS (
    UPDATE §run r SET lease_until = t.now + $3::bigint FROM t, {unnest_columns(_LEASE_COLUMNS, 4)}
    WHERE r.id = i.id AND {STILL_RUNNING} AND r.epoch = i.epoch AND r.owner = $2 AND r.lease_until > t.now
    RETURNING r.id, r.cancel)
SELECT 't' AS what, t.now, {NO_RUN} FROM t
UNION ALL
SELECT 'k', NULL, {_EXTENDED} FROM k
UNION ALL
SELECT 's', NULL, {run_columns("r")} FROM §run r
WHERE r.state = 'running' AND r.owner = $2 AND NOT (r.id = ANY ($4::text[]))
"""  # noqa: S608
#: The indexes of a run's id and of its request to cancel in the rows that _RENEW returns.
_ID, _CANCEL = 2 + RUN_FIELDS.index("id"), 2 + RUN_FIELDS.index("cancel")


async def renew(db: Database, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, now: Ms | None) -> Renewed:
    """Renew leases, given as (run id, epoch), of an owner for `ttl` milliseconds; return which are kept and which lost.

    An expired lease is lost, even if its run has not been claimed again. The answer also has the requests to cancel the
    kept runs, and the strays: running runs of the owner that `leases` does not name. `now`: the instant of a test;
    None: the server's time.
    """
    db.reach("renew:begin")
    named = dict(sorted(leases))
    async with db.single_statement("renew") as session:
        records = await session.fetch(_RENEW, db.now(now), storable_text(owner), ttl, list(named), list(named.values()))
    wall = next(record["now"] for record in records if record["what"] == "t")
    extended = {record[_ID]: record[_CANCEL] for record in records if record["what"] == "k"}
    strays = [read_run(record[2:]) for record in records if record["what"] == "s"]
    strays.sort(key=lambda run: (run.started_at or 0, run.id))
    cancel = {run_id: reason for run_id, reason in extended.items() if reason is not None}
    return Renewed(wall, frozenset(extended), frozenset(named).difference(extended), cancel, tuple(strays))


async def progress(db: Database, run_id: RunId, epoch: int, text: str) -> bool:
    """Store a run's progress line; return False if the run is not running under the lease `epoch`."""
    async with db.single_statement("progress") as session:
        found = await session.fetch(
            "UPDATE §run SET progress = $3 WHERE id = $1 AND state = 'running' AND epoch = $2 RETURNING id",
            storable_text(run_id),
            epoch,
            storable_text(text),
        )
    return bool(found)
