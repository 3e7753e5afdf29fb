"""The write that happens most, by the shortest way: runs that simply succeeded, and the next claim with them."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from mainspring.model.change import Change, Result, RunLease
from mainspring.model.errors import StoreError
from mainspring.model.events import RunSucceeded, encode_data
from mainspring.model.instant import Ms
from mainspring.model.run import Run, State
from mainspring.ports.store import Applied, Claimed, Wish
from mainspring.stores.postgres import apply_sql as sql
from mainspring.stores.postgres.claim import claim, claim_with_successes
from mainspring.stores.postgres.database import Broken, Database, Met
from mainspring.stores.postgres.explain import explain
from mainspring.stores.postgres.rows import arrays, one_text, plain_text

_ACCEPTED = Result("accepted")


async def successes(db: Database, changes: Sequence[Change], wish: Wish | None, now: Ms | None) -> Applied | None:
    """Write the batch if it is nothing but plain successes of runs claimed here; None leaves everything as it was."""
    rows: dict[str, tuple[Any, ...]] = {}
    owner = changes[0].events[0].owner if changes[0].events else None
    for change in changes:
        row = _plain(db.claimed, change, owner)
        if row is None or row[0] in rows:
            return None
        rows[row[0]] = row
    # Rows are locked in the order of ids.
    columns = list(zip(*(rows[run_id] for run_id in sorted(rows)), strict=True))
    told = [one_text(column) for column in columns[: sql.TOLD]]
    if None in told:
        return None
    said = [() if column.count(None) == len(rows) else column for column in columns[sql.TOLD :]]
    done = [plain_text(owner), *told, *said]
    claimed = None
    released = [(change.guard.id, gate) for change in changes if change.guard for gate in change.releases]
    if released:
        async with db.single("apply") as session:
            row = await session.row(sql.SUCCEED_AND_RELEASE, db.now(now), *done, *arrays(released, 2))
        wall, ids = row["now"], row["ids"]
        if wish is not None:
            claimed = await _also(claim(db, wish.offer, wish.limit, (), now))
    elif wish is not None and wish.limit > 0:
        wall, ids, claimed = await claim_with_successes(db, wish, done, db.now(now))
        if claimed is None:
            claimed = await _also(claim(db, wish.offer, wish.limit, (), now))
    else:
        async with db.single("apply") as session:
            row = await session.row(sql.SUCCEED, db.now(now), *done)
        wall, ids = row["now"], row["ids"]
    for run_id in rows:
        db.claimed.pop(run_id, None)
    results = [_ACCEPTED] * len(changes)
    if ids is not None and len(ids) == len(changes):
        return Applied(wall, results, claimed)
    held = set(ids or ())
    refused = [(i, change) for i, change in enumerate(changes) if change.guard and change.guard.id not in held]
    for index, _ in refused:
        results[index] = Result("refused")
    async with db.reading() as session:
        await explain(session, refused, results)
    return Applied(wall, results, claimed)


def part(db: Database, changes: Sequence[Change]) -> tuple[list[int], list[int]] | None:
    """The places of such successes and those of the others, if both can be written one after the other."""
    ended: list[int] = []
    others: list[int] = []
    owner: str | None = None
    for place, change in enumerate(changes):
        owner = change.events[0].owner if not ended and change.events else owner
        (others if _plain(db.claimed, change, owner) is None else ended).append(place)
    runs = {guard.id for place in ended if (guard := changes[place].guard) is not None}
    for place in others:
        guard, new = changes[place].guard, changes[place].runs
        if (guard is not None and guard.id in runs) or any(run.id in runs for run in new):
            return None
    return (ended, others) if ended and others and len(runs) == len(ended) else None


async def _also(claiming: Awaitable[Claimed]) -> Claimed | None:
    """A claim after a commit: when it fails, what was stored is still told; whoever claims asks again."""
    try:
        return await claiming
    except (StoreError, Broken, Met):
        return None


def _plain(known: Mapping[str, Run], change: Change, owner: str | None) -> tuple[Any, ...] | None:
    """A row for `sql.successes` if the change says nothing but that a run of ours succeeded under its lease."""
    guard, run, events = change.guard, change.run, change.events
    if type(guard) is not RunLease or run is None or run.state is not State.SUCCEEDED or len(events) != 1:
        return None
    if change.touches or change.runs or change.spans or change.bodies or change.gates:
        return None
    claimed = known.get(guard.id)
    event = events[0]
    if (
        claimed is None
        or type(event) is not RunSucceeded
        or event.run_id != guard.id
        or run.id != guard.id
        or event.epoch != guard.epoch
        or claimed.epoch != guard.epoch
        or event.attempt != claimed.attempt
        or event.ns != claimed.ns
        or event.schedule_id != claimed.schedule_id
        or event.owner != owner
        or event.actor is not None
        or event.v != 1
        or event.began_at is None
        or event.ms is None
        or (event.began_at, event.ms, event.result) != (run.began_at, run.ms, run.result)
        or (run.ready_at, run.failures, run.crashes) != (claimed.ready_at, claimed.failures, claimed.crashes)
        or run.dead
        or run.reason is not None
        or run.error is not None
        or change.schedule is not None
    ):
        return None
    result = event.result
    data = None if result is None else encode_data(event)
    return guard.id, guard.epoch, run.began_at, run.ms, change.id, plain_text(result), data
