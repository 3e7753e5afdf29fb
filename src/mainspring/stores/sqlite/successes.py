"""The write that happens most, by the shortest way: runs claimed here that simply succeeded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.model.change import Change, Result, RunLease
from mainspring.model.events import RunSucceeded
from mainspring.model.instant import Ms
from mainspring.model.run import State
from mainspring.stores.batch import Indexed
from mainspring.stores.sqlite import apply_sql as sql
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.gates import leave_gates
from mainspring.stores.sqlite.rows import pack

_ACCEPTED = Result("accepted")
#: As many runs to a statement make up for its start.
_WORTH_GROUPING = 8
_rids = msgspec.json.Decoder(list[int])


def successes(db: Database, changes: Sequence[Change], results: list[Result], mark: int, wall: Ms) -> Indexed:
    """Write them and their events, as `apply` would; what is left to do is the answer, in order."""
    if not db.claimed:
        return list(enumerate(changes))
    plain: list[tuple[int, int, Change]] = []
    rest: Indexed = []
    owner: str | None = None
    for index, change in enumerate(changes):
        rid = _plain_success(db, change)
        if rid is None or (plain and change.events[0].owner != owner):
            rest.append((index, change))
        else:
            owner = change.events[0].owner
            plain.append((index, rid, change))
    if not plain or _entangled(plain, rest):
        return list(enumerate(changes))
    if _write(db, plain, mark, wall) != len(plain):
        written = set(_rids.decode(db.value(sql.SUCCEEDED, pack([rid for _, rid, _ in plain]), mark)))
        refused = [(index, change) for index, rid, change in plain if rid not in written]
        plain = [one for one in plain if one[1] in written]
        rest = sorted(rest + refused, key=lambda one: one[0])  # they are looked at again, to be told why
    db.reach("apply:after_guard")
    left: list[str] = []
    for index, _, change in plain:
        results[index] = _ACCEPTED
        left += change.releases
    if left:
        leave_gates(db, left)
    db.reach("apply:after_rows")
    if plain:
        db.run(sql.SUCCESSES, pack({rid: change.id for _, rid, change in plain}), wall, owner)
    db.reach("apply:after_events")
    return rest


def _write(db: Database, plain: list[tuple[int, int, Change]], mark: int, wall: Ms) -> int:
    """The rows; how many there were. Short runs of one batch began and ended together, so many are written alike."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for _, rid, change in plain:
        run = change.run
        assert run is not None
        groups.setdefault((run.epoch, run.began_at, run.ms, run.result), []).append(rid)
    if len(plain) < _WORTH_GROUPING * len(groups):
        rows = [(rid, *values) for values, rids in groups.items() for rid in rids]
        return db.run_rows(sql.SUCCEED, rows, mark, wall)
    return sum(db.run(sql.SUCCEED_ALIKE, pack(rids), mark, wall, *values).rowcount for values, rids in groups.items())


def _plain_success(db: Database, change: Change) -> int | None:
    """The number of the run's row if the change says nothing but that the run succeeded under its lease."""
    guard, run, events = change.guard, change.run, change.events
    if type(guard) is not RunLease or run is None or run.state is not State.SUCCEEDED or len(events) != 1:
        return None
    known = db.claimed.pop(run.id, None)  # for whatever becomes of it, the claim is over
    if known is None or change.touches or change.runs or change.spans or change.bodies or change.gates:
        return None
    rid, claimed = known
    event = events[0]
    same = (
        type(event) is RunSucceeded
        and guard.id == run.id == event.run_id == claimed.id
        and guard.epoch == run.epoch == event.epoch == claimed.epoch
        and event.attempt == run.attempt == claimed.attempt
        and event.ns == claimed.ns
        and event.schedule_id == claimed.schedule_id
        and event.began_at == run.began_at
        and event.ms == run.ms
        and event.result == run.result
        and run.failures == claimed.failures
        and run.crashes == claimed.crashes
        and run.ready_at == claimed.ready_at
        and not run.dead
        and run.began_at is not None
        and run.ms is not None
        and event.actor is None
        and run.reason is None
        and run.error is None
        and claimed.unique_key is None
        and change.schedule is None
    )
    return rid if same and (run.result is None or "\0" not in run.result) else None


def _entangled(plain: list[tuple[int, int, Change]], rest: Indexed) -> bool:
    """True when the order of the changes could matter: two of them speak of one run."""
    if not rest:
        return False  # a run's second change is never among the plain ones
    ids = {change.run.id for _, _, change in plain if change.run is not None}
    for _, change in rest:
        if change.guard is not None and change.guard.id in ids:
            return True
        for run in change.runs:
            if run.id in ids:
                return True
    return False
