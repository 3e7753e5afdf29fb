"""Fast path of `apply` for its most frequent change: the success of a run that this store object claimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.backends.change_batches import IndexedChanges
from mainspring.backends.sqlite import apply_sql as sql
from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.gates import release_gates
from mainspring.backends.sqlite.rows import pack
from mainspring.model.change import Change, Result
from mainspring.model.instant import Ms

#: A change's index in the batch, the row number of its run, and the change.
PlainSuccess = tuple[int, int, Change]
_ACCEPTED = Result("accepted")
#: Runs with equal values form a group. From this mean number of runs per group on, one statement for each group is
#: faster than binding the values of every run.
MIN_GROUP_SIZE = 8
_rids = msgspec.json.Decoder(list[int])


def complete_runs(
    db: Database, changes: Sequence[Change], results: list[Result], mark: int, wall: Ms
) -> IndexedChanges:
    """Write the plain successes of the batch and set their `results`; return the other changes in order.

    A plain success ends a run that this store object claimed. The run has no unique key, and its result no U+0000. Two
    kinds of plain successes are not written but returned: those whose owner is not the owner of the first one, and
    those whose run is no longer running under its claim. If one of the other changes is about the run of a plain
    success, all changes are returned, because their order may matter. `mark`: the number for the column `mark` of the
    runs. `wall`: the present time.
    """
    if not db.claimed_runs:
        return list(enumerate(changes))
    plain, rest = _split_changes(db, changes)
    if not plain or _is_entangled(plain, rest):
        return list(enumerate(changes))
    owner = plain[0][2].events[0].owner
    if _write(db, plain, mark, wall) != len(plain):
        written = set(_rids.decode(db.value(sql.SUCCEEDED_RUNS, pack([rid for _, rid, _ in plain]), mark)))
        refused = [(index, change) for index, rid, change in plain if rid not in written]
        plain = [one for one in plain if one[1] in written]
        rest = sorted(rest + refused, key=lambda one: one[0])
    db.reach("apply:after_guard")
    releases: list[str] = []
    for index, _, change in plain:
        results[index] = _ACCEPTED
        releases += change.releases
    if releases:
        release_gates(db, releases)
    db.reach("apply:after_rows")
    if plain:
        db.run(sql.INSERT_SUCCEEDED_EVENTS, pack({rid: change.id for _, rid, change in plain}), wall, owner)
    db.reach("apply:after_events")
    return rest


def _split_changes(db: Database, changes: Sequence[Change]) -> tuple[list[PlainSuccess], IndexedChanges]:
    """Return (plain successes, all other changes). A plain success is one that this fast path may write.

    All plain successes have the owner of the first one. The runs of all successes are removed from `db.claimed_runs`,
    because their claims are over.
    """
    plain: list[PlainSuccess] = []
    rest: IndexedChanges = []
    owner: str | None = None
    for index, change in enumerate(changes):
        rid = _find_claimed_row(db, change)
        if rid is None or (plain and change.events[0].owner != owner):
            rest.append((index, change))
        else:
            owner = change.events[0].owner
            plain.append((index, rid, change))
    return plain, rest


def _write(db: Database, plain: list[PlainSuccess], mark: int, wall: Ms) -> int:
    """Write the runs of plain successes as succeeded; return how many were written.

    A run that is no longer running under its claim's epoch is not written. Short runs of one batch often have equal
    epochs, times and results; such runs are written by one statement for the group. `mark`: the number for the column
    `mark` of the runs. `wall`: the present time.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for _, rid, change in plain:
        run = change.run
        assert run is not None
        groups.setdefault((run.epoch, run.began_at, run.ms, run.result), []).append(rid)
    if len(plain) < MIN_GROUP_SIZE * len(groups):
        rows = [(rid, *values) for values, rids in groups.items() for rid in rids]
        return db.run_rows(sql.SUCCEED_RUNS, rows, mark, wall)
    return sum(db.run(sql.SUCCEED_GROUP, pack(rids), mark, wall, *values).rowcount for values, rids in groups.items())


def _find_claimed_row(db: Database, change: Change) -> int | None:
    """Return the row number of the change's run if the change is a plain success, else None.

    A plain success is a success of a run that this store object claimed under the change's epoch and that has no unique
    key. Its result must have no U+0000. Any success removes the run from `db.claimed_runs`, because the claim is over.
    """
    run = change.run
    if change.kind != "success" or run is None:
        return None
    known = db.claimed_runs.pop(run.id, None)
    if known is None:
        return None
    rid, claimed = known
    if claimed.epoch != run.epoch or claimed.unique_key is not None:
        return None  # the run was claimed again meanwhile, or its end frees a unique key
    return rid if run.result is None or "\0" not in run.result else None


def _is_entangled(plain: list[PlainSuccess], rest: IndexedChanges) -> bool:
    """Return True if a change of `rest` guards or inserts a run of `plain`: their order may then matter."""
    if not rest:
        return False  # `_find_claimed_row` accepts one change of a run at most
    ids = {change.run.id for _, _, change in plain if change.run is not None}
    for _, change in rest:
        if change.guard is not None and change.guard.id in ids:
            return True
        for run in change.runs:
            if run.id in ids:
                return True
    return False
