"""The write that happens most, by the shortest way: runs that simply succeeded, and the next claim with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mainspring.model.change import Change, Result, RunLease
from mainspring.model.events import RunSucceeded, encode_data
from mainspring.model.instant import Ms
from mainspring.model.run import State
from mainspring.ports.store import Applied, Wish
from mainspring.stores.postgres import apply_sql as sql
from mainspring.stores.postgres.claim import claim_with_successes, hard_way
from mainspring.stores.postgres.database import Database
from mainspring.stores.postgres.explain import explain
from mainspring.stores.postgres.rows import arrays, plain_text

_ACCEPTED = Result("accepted")
_WIDTH = len(sql.SUCCESS_COLUMNS)


async def successes(db: Database, changes: Sequence[Change], wish: Wish | None, now: Ms | None) -> Applied | None:
    """Write the batch if it is nothing but plain successes; None leaves everything as it was."""
    rows = [_plain(change) for change in changes]
    if None in rows or len({change.guard.id for change in changes if change.guard is not None}) < len(changes):
        return None
    columns = arrays(sorted(row for row in rows if row is not None), _WIDTH)  # rows are locked in the order of ids
    claimed = None
    if wish is not None and wish.limit > 0:
        wall, ids, claimed = await claim_with_successes(db, wish, columns, db.now(now))
        if claimed is None:
            claimed = await hard_way(db, wish.offer, wish.limit, (), now)
    else:
        async with db.single("apply") as session:
            row = await session.row(sql.SUCCEED, db.now(now), *columns)
        wall, ids = row["now"], row["ids"]
    results = [_ACCEPTED] * len(changes)
    if ids is not None and len(ids) == len(changes):
        return Applied(wall, results, claimed)
    held = set(ids or ())
    refused = [
        (i, change) for i, change in enumerate(changes) if change.guard is not None and change.guard.id not in held
    ]
    for index, _ in refused:
        results[index] = Result("refused")
    async with db.reading() as session:
        await explain(session, refused, results)
    return Applied(wall, results, claimed)


def _plain(change: Change) -> tuple[Any, ...] | None:
    """A row of `SUCCESS_COLUMNS` if the change says nothing but that the run succeeded under its lease."""
    guard, run, events = change.guard, change.run, change.events
    if type(guard) is not RunLease or run is None or run.state is not State.SUCCEEDED or len(events) != 1:
        return None
    if change.touches or change.releases or change.runs or change.spans or change.bodies or change.gates:
        return None
    event = events[0]
    if (
        type(event) is not RunSucceeded
        or event.run_id != guard.id
        or run.id != guard.id
        or event.epoch != guard.epoch
        or event.attempt != run.attempt
        or event.ns != run.ns
        or event.schedule_id != run.schedule_id
        or event.actor is not None
        or event.v != 1
        or run.dead
        or run.reason is not None
        or run.error is not None
        or change.schedule is not None
    ):
        return None
    if event.result is None and event.began_at is not None and event.ms is not None:
        data: str | None = f'{{"began_at":{event.began_at},"ms":{event.ms}}}'
    else:
        data = encode_data(event)
    return (
        guard.id,
        guard.epoch,
        run.began_at,
        run.ms,
        plain_text(run.result),
        run.ready_at,
        run.failures,
        run.crashes,
        plain_text(event.owner),
        change.id,
        data,
    )
