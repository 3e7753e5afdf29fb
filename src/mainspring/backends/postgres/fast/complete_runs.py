"""Fast path of `apply` for the most frequent write: plain successes of runs, together with the next claim.

A *plain success* is a change of kind "success" for a run that this store object claimed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from mainspring.backends.postgres import apply_sql as sql
from mainspring.backends.postgres.claim import claim, claim_with_successes
from mainspring.backends.postgres.database import Database
from mainspring.backends.postgres.refusals import explain_refusals
from mainspring.backends.postgres.rows import column_arrays, join_column, storable_text
from mainspring.backends.remote.failures import ConnectionLost, WriteConflict
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError
from mainspring.model.event_codec import encode_data
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.ports.store import Applied, Claimed, ClaimRequest

_ACCEPTED = Result("accepted")


async def complete_runs(
    db: Database, changes: Sequence[Change], claim_request: ClaimRequest | None, now: Ms | None
) -> Applied | None:
    """Write a batch of plain successes, then claim if requested; return the results and the claim.

    All successes must have the same owner, and each must be of a different run. Return None, with nothing written, for
    any other batch, or if the values of a column cannot be joined to one text. The runs of a written batch are removed
    from `db.claimed`. `now`: the instant of a test, else None.
    """
    rows: dict[str, tuple[Any, ...]] = {}
    owner = changes[0].events[0].owner if changes[0].events else None
    for change in changes:
        row = _success_row(db.claimed, change, owner)
        if row is None or row[0] in rows:
            return None
        rows[row[0]] = row
    # Rows are locked in the order of ids.
    columns = list(zip(*(rows[run_id] for run_id in sorted(rows)), strict=True))
    texts = [join_column(column) for column in columns[: sql.TEXT_COLUMN_COUNT]]
    if None in texts:
        return None
    arrays = [() if column.count(None) == len(rows) else column for column in columns[sql.TEXT_COLUMN_COUNT :]]
    wall, ids, claimed = await _write(db, changes, [storable_text(owner), *texts, *arrays], claim_request, now)
    for run_id in rows:
        db.claimed.pop(run_id, None)
    results = [_ACCEPTED] * len(changes)
    if ids is None or len(ids) < len(changes):
        await _explain_lost(db, changes, set(ids or ()), results)
    return Applied(wall, results, claimed)


async def _write(
    db: Database, changes: Sequence[Change], done: list[Any], claim_request: ClaimRequest | None, now: Ms | None
) -> tuple[Ms, list[str] | None, Claimed | None]:
    """Complete runs, give their slots back to their gates and, if requested, claim other runs.

    Returns the store's time of the write, the ids of the completed runs (None if there are none), and the claim. A run
    whose lease does not hold is not completed. `done`: the parameters of `complete_runs_ctes`, made from `changes`.
    `now`: the instant of a test, else None.

    Normally the claim is part of the same commit. It follows the commit if a change releases slots at gates, so that
    the claim finds these slots. It also follows if one of the runs to claim has gates or crashed before. If a claim
    that follows fails, no error is raised and the claim is None. The claim is also None if none was requested, or if
    its limit is 0 and no change releases slots.
    """
    claimed: Claimed | None = None
    released = [(change.guard.id, gate) for change in changes if change.guard for gate in change.releases]
    if released:
        async with db.single_statement("apply") as session:
            row = await session.row(sql.COMPLETE_RUNS_AND_LEAVE_GATES, db.now(now), *done, *column_arrays(released, 2))
        if claim_request is not None:
            claimed = await _claim_or_none(claim(db, claim_request.offer, claim_request.limit, (), now))
        return row["now"], row["ids"], claimed
    if claim_request is not None and claim_request.limit > 0:
        wall, ids, claimed = await claim_with_successes(db, claim_request, done, db.now(now))
        if claimed is None:
            claimed = await _claim_or_none(claim(db, claim_request.offer, claim_request.limit, (), now))
        return wall, ids, claimed
    async with db.single_statement("apply") as session:
        row = await session.row(sql.COMPLETE_RUNS, db.now(now), *done)
    return row["now"], row["ids"], None


async def _explain_lost(db: Database, changes: Sequence[Change], held: set[str], results: list[Result]) -> None:
    """Set the result of each change whose run was not completed: `repeated` if the change is stored, else `refused`.

    `held`: the ids of the runs that were completed because their lease held.
    """
    refused = [(i, change) for i, change in enumerate(changes) if change.guard and change.guard.id not in held]
    for index, _ in refused:
        results[index] = Result("refused")
    async with db.read_only() as session:
        await explain_refusals(session, refused, results)


def split_successes(db: Database, changes: Sequence[Change]) -> tuple[list[int], list[int]] | None:
    """Return two lists of indexes: of the plain successes of one owner in a batch, and of the other changes.

    Return None if one of the lists would be empty, if two plain successes are of one run, or if another change guards
    or inserts the run of a plain success.
    """
    ended: list[int] = []
    others: list[int] = []
    owner: str | None = None
    for place, change in enumerate(changes):
        owner = change.events[0].owner if not ended and change.events else owner
        (others if _success_row(db.claimed, change, owner) is None else ended).append(place)
    runs = {guard.id for place in ended if (guard := changes[place].guard) is not None}
    for place in others:
        guard, new = changes[place].guard, changes[place].runs
        if (guard is not None and guard.id in runs) or any(run.id in runs for run in new):
            return None
    return (ended, others) if ended and others and len(runs) == len(ended) else None


async def _claim_or_none(call: Awaitable[Claimed]) -> Claimed | None:
    """Await a claim that follows a commit and return its answer; return None if the claim fails.

    Why: the results of the commit must reach the caller, which would otherwise send the changes again. The worker
    claims again anyway.
    """
    try:
        return await call
    except (StoreError, ConnectionLost, WriteConflict):
        return None


def _success_row(known: Mapping[str, Run], change: Change, owner: str | None) -> tuple[Any, ...] | None:
    """Return a row of the parameters of `complete_runs_ctes` for a plain success by `owner`; None for any other change.

    `known`: the runs that this store object claimed, by id. The run must be one of them, and have the epoch of its
    claim.
    """
    run = change.run
    if change.kind != "success" or run is None:
        return None
    claimed, event = known.get(run.id), change.events[0]
    if claimed is None or claimed.epoch != run.epoch or event.owner != owner:
        return None
    data = None if run.result is None else encode_data(event)
    return run.id, run.epoch, run.began_at, run.ms, change.id, storable_text(run.result), data
