"""The store's `renew` and `progress`: what a worker writes while it holds leases on runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.rows import RUN_JSON, WITH_ROWS, item, pack, read_runs
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.ports.store import Renewed

#: Rows: [run id, epoch]; parameters: owner, lease time. Returns [id, reason of a requested cancellation, row number] of
#: the runs whose lease holds.
_LEASED = f"""
{WITH_ROWS}
SELECT json_group_array(json_array(r.id, r.cancel, r.rid)) FROM j CROSS JOIN run r
WHERE r.id = {item(0)} AND r.state = 'running' AND r.epoch = {item(1)} AND r.owner = ?2
  AND ifnull(r.lease_until, 0) > ?3
"""  # noqa: S608
#: Parameters: row numbers, new end of the lease.
_EXTEND = "UPDATE run SET lease_until = ?2 WHERE rid IN (SELECT value FROM json_each(?1))"
#: Parameters: owner, run ids. Returns the runs that the owner holds and that are not among the ids.
_STRAYS = f"""
SELECT json_group_array({RUN_JSON}) FROM (
    SELECT * FROM run o INDEXED BY run_lease
    WHERE o.state = 'running' AND o.owner = ?1 AND o.id NOT IN (SELECT value FROM json_each(?2))
    ORDER BY o.started_at, o.rid) r
"""  # noqa: S608
_leased_rows = msgspec.json.Decoder(list[tuple[str, str | None, int]])


def renew(db: Database, owner: str, leases: Sequence[tuple[RunId, int]], ttl: Ms, now: Ms | None) -> Renewed:
    """Extend those of the owner's leases that still hold; return held and lost runs, requests to cancel, and strays.

    `leases`: (run id, epoch) of each lease that the owner knows. An extended lease ends `ttl` ms from now. A lease that
    has ended is lost, even if no worker has claimed the run since. A stray is a run that the store believes to be held
    by the owner and that `leases` does not name. `now`: the time to use, for tests; None: what the clock shows.
    """
    wall, lease_now = db.clocks(now)
    db.reach("renew:begin")
    named = [rid for rid, _ in leases]
    kept: list[tuple[str, str | None, int]] = []
    if leases:
        with db.write("renew"):
            kept = _leased_rows.decode(db.value(_LEASED, pack(leases), owner, lease_now))
            if kept:
                db.run(_EXTEND, pack([row[2] for row in kept]), db.lease_clocks(now)[1] + ttl)
            strays = read_runs(db.value(_STRAYS, owner, pack(named)))
    else:
        with db.read():
            strays = read_runs(db.value(_STRAYS, owner, "[]"))
    holding = frozenset(row[0] for row in kept)
    cancel = {row[0]: row[1] for row in kept if row[1] is not None}
    return Renewed(wall, holding, frozenset(named) - holding, cancel, tuple(strays))


def progress(db: Database, run_id: RunId, epoch: int, text: str) -> bool:
    """Store the text as the run's progress and return True, if the run is still running under this epoch.

    Else change nothing and return False.
    """
    with db.read():
        changed = db.run(
            "UPDATE run SET progress = ?3 WHERE id = ?1 AND state = 'running' AND epoch = ?2", run_id, epoch, text
        ).rowcount
    return changed == 1
