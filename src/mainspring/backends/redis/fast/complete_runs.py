"""Fast path of `apply` for plain successes: complete runs and claim the next runs in one call.

A *plain success* is a change of kind "success" whose run is not parked, leaves no gate and has no request to cancel.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.backends.redis.claim import pack_offer, read_claimed
from mainspring.backends.redis.database import Argument, Database
from mainspring.backends.redis.rows import encode, encode_event_rest, encode_run_rest
from mainspring.backends.redis.scripts import load
from mainspring.model.change import Change, Result, RunLease
from mainspring.model.instant import Ms
from mainspring.ports.store import Applied, ClaimRequest

COMPLETE_RUNS = load("apply", "common", "claim_runs", "complete_runs")
#: The largest number of changes in one call: Lua's unpack() takes some thousand values, and a run needs several.
_MAX_BATCH_CHANGES = 1_000
_ACCEPTED = Result("accepted")


async def complete_runs(
    db: Database, changes: Sequence[Change], claim_request: ClaimRequest | None, now: Ms | None
) -> tuple[Applied, list[int]] | None:
    """Write a batch of plain successes, then claim if requested; return the answer and positions of unwritten changes.

    A change is left unwritten, for lua/apply.lua, if its lease is not held, or if its run has gates or a cancel
    request. The answer then has the result "accepted" for this change, which is wrong: the caller must replace it. Nor
    is anything claimed then.

    Return None, with nothing written, if the batch is empty, has more than _MAX_BATCH_CHANGES changes, has two changes
    of one run, or has a change that is no plain success. `now`: the instant of a test; None: the server's time.
    """
    if not 0 < len(changes) <= _MAX_BATCH_CHANGES or not all(map(is_plain_success, changes)):
        return None
    ids: dict[str, int] = {}
    ready: list[Ms] = []
    crashes: list[int] = []
    arguments: list[Argument] = []
    for change in changes:
        guard, run = change.guard, change.run
        assert isinstance(guard, RunLease)
        assert run is not None
        ids[guard.id] = guard.epoch
        ready.append(run.ready_at)
        crashes.append(run.crashes)
        arguments += (encode_run_rest(run), encode_event_rest(change.events[0], change.id))
    if len(ids) < len(changes):  # a run twice
        return None
    packed_request = "" if claim_request is None else encode((pack_offer(claim_request.offer), claim_request.limit))
    packed = encode((list(ids), list(ids.values()), ready, crashes))
    store_now, unwritten, claimed = await db.run_write(COMPLETE_RUNS, db.now(now), packed, packed_request, *arguments)
    applied = Applied(store_now, [_ACCEPTED] * len(changes), None if claimed is None else read_claimed(claimed))
    return applied, [position - 1 for position in unwritten]


def is_plain_success(change: Change) -> bool:
    """Return True for a success that releases no gate, of a run that is neither parked nor asked to cancel."""
    run = change.run
    return change.kind == "success" and not change.releases and run is not None and run.cancel is run.parked_on is None
