"""The store's method `apply`: write a batch of changes. Frequent kinds of batches take one statement, others more."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.backends.change_batches import IndexedChanges, split_independent
from mainspring.backends.postgres import apply_sql as sql
from mainspring.backends.postgres.change_writer import ChangeWriter
from mainspring.backends.postgres.claim import claim, claim_in_transaction
from mainspring.backends.postgres.database import Database, Session
from mainspring.backends.postgres.fast.advance_schedules import ScheduleAdvances, match_schedule_advances
from mainspring.backends.postgres.fast.complete_runs import complete_runs, split_successes
from mainspring.backends.postgres.fast.insert_runs import RunInserts, match_run_inserts
from mainspring.backends.postgres.refusals import explain_refusals, find_inserted
from mainspring.backends.postgres.rows import NOW_SQL
from mainspring.model.change import Change, Result, RunLease
from mainspring.model.instant import Ms
from mainspring.ports.store import Applied, Claimed, ClaimRequest

#: If a change is sent again, the log is searched this far back, in milliseconds, for notes that the change has written.
_RESEND_LOOKBACK_MS = 600_000


async def apply(
    db: Database, changes: Sequence[Change], claim_request: ClaimRequest | None, now: Ms | None, resent: bool
) -> Applied:
    """Write a batch of changes, each all or nothing, then claim if requested; return the results and the claim.

    The batch is one transaction, with one exception: a batch that mixes plain successes (of runs that this store object
    claimed) with new runs, or with changes that plan fires of schedules, takes two transactions, first for the
    successes, then for the other changes. The claim shares the last commit or follows it.

    With `resent`, the changes were sent before and no answer came. They are then one transaction in any case, and the
    result of a change that is stored already is `repeated`. `now`: the instant of a test, else None.
    """
    if not changes:
        return await _claim_only(db, claim_request, now)
    db.reach("apply:begin")
    inserts: RunInserts | ScheduleAdvances | None = None
    if not resent:
        applied = await complete_runs(db, changes, claim_request, now)
        if applied is None:
            applied = await _apply_split(db, changes, claim_request, now)
        if applied is not None:
            return applied
        inserts = match_run_inserts(changes) or match_schedule_advances(changes)
    results: list[Result] = [Result("refused")] * len(changes)
    if inserts is not None and claim_request is None:
        async with db.single_statement("apply") as session:
            wall, refused = await inserts.write(session, results, db.now(now))
        if refused:
            async with db.read_only() as session:
                await explain_refusals(session, refused, results)
        return Applied(wall, results)
    claimed: Claimed | None = None
    async with db.transaction("apply") as session:
        if inserts is not None:
            wall, refused = await inserts.write(session, results, db.now(now))
            if refused:
                await explain_refusals(session, refused, results)
        else:
            wall = await _write_changes(db, session, changes, results, now, resent)
        if claim_request is not None:
            claimed = await claim_in_transaction(db, session, claim_request.offer, claim_request.limit, (), wall)
    if db.claimed:
        _forget_ended_claims(db, changes)
    return Applied(wall, results, claimed)


async def _claim_only(db: Database, claim_request: ClaimRequest | None, now: Ms | None) -> Applied:
    """Answer a batch without changes: claim if requested, else only read the store's time."""
    if claim_request is None:
        async with db.read_only() as session:
            return Applied(await session.value(f"SELECT {NOW_SQL}", db.now(now)), [])
    claimed = await claim(db, claim_request.offer, claim_request.limit, (), now)
    return Applied(claimed.now, [], claimed)


async def _apply_split(
    db: Database, changes: Sequence[Change], claim_request: ClaimRequest | None, now: Ms | None
) -> Applied | None:
    """Write a mixed batch as two batches, each by its fast path, then claim if requested; return the results of both.

    A mixed batch has plain successes (of runs that this store object claimed), and besides them only changes that
    insert new runs, or only changes that plan fires of schedules. Return None, with nothing written, for any other
    batch.
    """
    parts = split_successes(db, changes)
    if parts is None:
        return None
    ended, others = ([changes[place] for place in places] for places in parts)
    if match_run_inserts(others) is None and match_schedule_advances(others) is None:
        return None
    first = await complete_runs(db, ended, None, now)
    if first is None:
        return None
    second = await apply(db, others, claim_request, now, resent=False)
    results: list[Result] = [Result("refused")] * len(changes)
    for places, applied in zip(parts, (first, second), strict=True):
        for place, result in zip(places, applied.results, strict=True):
            results[place] = result
    return Applied(second.now, results, second.claimed)


async def _write_changes(
    db: Database, session: Session, changes: Sequence[Change], results: list[Result], now: Ms | None, resent: bool
) -> Ms:
    """Write changes of any kind in the session's transaction; return the instant stamped on their events.

    `results`: one for each change, to be set. `now`: the instant of a test, else None. `resent`: True if the changes
    were sent before, so some may be stored already.
    """
    wall: Ms = (await session.row(sql.BEGIN, db.now(now)))["now"]
    rest: IndexedChanges = list(enumerate(changes))
    if resent:
        rest = await _exclude_stored(session, rest, results, wall)
    for part in split_independent(rest):
        await ChangeWriter(db, session, wall, results).write(part)
    return wall


async def _exclude_stored(session: Session, changes: IndexedChanges, results: list[Result], wall: Ms) -> IndexedChanges:
    """Return the changes that are still to be written; set the results of the stored changes to `repeated`.

    Only changes without a guard are searched for in the log. A change with a guard stays: if it is stored, its guard
    refuses it. `wall`: the instant of the transaction.
    """
    stored = await _find_stored(session, [(index, change) for index, change in changes if change.guard is None], wall)
    for index in stored:
        results[index] = Result("repeated")
    return [(index, change) for index, change in changes if index not in stored]


async def _find_stored(session: Session, unguarded: IndexedChanges, wall: Ms) -> set[int]:
    """Return the indexes of the changes that are stored already: the log has an event with the id of the change.

    `unguarded`: changes without a guard. Events that change no row (notes) are searched for only among the notes of the
    last _RESEND_LOOKBACK_MS before the instant `wall`.
    """
    stored = await find_inserted(session, unguarded)
    noting = [change.id for _, change in unguarded if change.events]
    if noting:
        rows = await session.fetch(sql.NOTED_BY_CHANGE, noting, wall - _RESEND_LOOKBACK_MS)
        noted = {row["change"] for row in rows}
        stored.update(index for index, change in unguarded if change.id in noted)
    return stored


def _forget_ended_claims(db: Database, changes: Sequence[Change]) -> None:
    """Remove from `db.claimed` the runs whose lease guards one of the changes.

    A run that was claimed again meanwhile stays: its entry has another epoch.
    """
    for change in changes:
        if isinstance(change.guard, RunLease):
            ended = db.claimed.get(change.guard.id)
            if ended is not None and ended.epoch == change.guard.epoch:
                del db.claimed[change.guard.id]
