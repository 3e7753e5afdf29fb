"""Plain successes by the shortest way: when a batch brings nothing else, and the next claim with it."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.change import Change, Result, RunLease
from mainspring.model.events import RunSucceeded
from mainspring.model.instant import Ms
from mainspring.model.run import State
from mainspring.ports.store import Applied, Wish
from mainspring.stores.redis.claim import pack_offer, read_claimed
from mainspring.stores.redis.database import Database, Word
from mainspring.stores.redis.rows import encode, event_rest, run_rest
from mainspring.stores.redis.scripts import load

SUCCEED = load("apply", "common", "claiming", "succeed")
#: So many fit into one command of a script.
_MOST = 1_000
_ACCEPTED = Result("accepted")


async def successes(
    db: Database, changes: Sequence[Change], wish: Wish | None, now: Ms | None
) -> tuple[Applied, list[int]] | None:
    """What was written, and the places of changes that need a closer look; None when the batch is something else."""
    if not 0 < len(changes) <= _MOST or not all(map(plain, changes)):
        return None
    ids: dict[str, int] = {}
    ready: list[Ms] = []
    crashes: list[int] = []
    words: list[Word] = []
    for change in changes:
        guard, run = change.guard, change.run
        assert isinstance(guard, RunLease)
        assert run is not None
        ids[guard.id] = guard.epoch
        ready.append(run.ready_at)
        crashes.append(run.crashes)
        words += (run_rest(run), event_rest(change.events[0], change.id))
    if len(ids) < len(changes):
        return None
    wished = "" if wish is None else encode((pack_offer(wish.offer), wish.limit))
    packed = encode((list(ids), list(ids.values()), ready, crashes))
    wall, others, claimed = await db.write(SUCCEED, db.now(now), packed, wished, *words)
    applied = Applied(wall, [_ACCEPTED] * len(changes), None if claimed is None else read_claimed(claimed))
    return applied, [place - 1 for place in others]


def plain(change: Change) -> bool:
    """True when the change says nothing but that a run succeeded under its lease."""
    guard, run, events = change.guard, change.run, change.events
    if type(guard) is not RunLease or run is None or run.state is not State.SUCCEEDED or len(events) != 1:
        return False
    if change.touches or change.releases or change.runs or change.spans or change.bodies or change.gates:
        return False
    event = events[0]
    return (
        type(event) is RunSucceeded
        and event.run_id == guard.id == run.id
        and not run.dead
        and run.cancel is None
        and run.parked_on is None
        and change.schedule is None
    )
