"""The one write: a batch of changes in one call of a script, which checks all before it writes any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple

from mainspring.model.change import Change, Result, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.events import Event, RunEvent, ScheduleEvent
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.ports.store import Applied, Wish
from mainspring.stores.redis.births import births
from mainspring.stores.redis.claim import claim, pack_offer, read_claimed
from mainspring.stores.redis.database import Database
from mainspring.stores.redis.rows import (
    encode,
    event_rest,
    pack_birth,
    pack_schedule,
    pack_span,
    raw,
    read_run,
    read_schedule,
)
from mainspring.stores.redis.scripts import load
from mainspring.stores.redis.successes import plain, successes

APPLY = load("apply", "common", "claiming", "apply")

# As lua/apply.lua calls them.
_NOTHING, _RUN_LEASE, _RUN_AT, _RUN_ABSENT, _SCHEDULE_AT, _SCHEDULE_ABSENT = range(6)
_RUN_EVENT, _SCHEDULE_EVENT, _NOTE = 1, 2, 3
_REPEATED = 2
_ACCEPTED = tuple(Result("accepted", n) for n in range(16))


async def apply(db: Database, changes: Sequence[Change], wish: Wish | None, now: Ms | None) -> Applied:
    """Each change all or nothing; then a claim, if one is wished. One call for the batch.

    New runs that only wait are a call of their own, before what else there is: short ones cost less than a long one,
    and neither depends on the other.
    """
    db.reach("apply:begin")
    new = [place for place, change in enumerate(changes) if type(change.guard) is not RunLease]
    if len(new) == len(changes):
        born = await births(db, changes, now)
        if born is None:
            return await _apply(db, changes, wish, now)
        if wish is None:
            return born
        claimed = await claim(db, wish.offer, wish.limit, (), now)
        return Applied(claimed.now, born.results, claimed)
    if not new:
        return await _ended(db, changes, wish, now)
    ended = [place for place, change in enumerate(changes) if type(change.guard) is RunLease]
    if not all(plain(changes[place]) for place in ended):
        return await _apply(db, changes, wish, now)
    born = await births(db, [changes[place] for place in new], now)
    if born is None:
        return await _apply(db, changes, wish, now)
    applied = await _ended(db, [changes[place] for place in ended], wish, now)
    told = {**dict(zip(new, born.results, strict=True)), **dict(zip(ended, applied.results, strict=True))}
    return Applied(applied.now, [told[place] for place in range(len(changes))], applied.claimed)


async def _ended(db: Database, changes: Sequence[Change], wish: Wish | None, now: Ms | None) -> Applied:
    """Outcomes: those that are no plain successes, here or in the store's eyes, go the long way."""
    done = await successes(db, changes, wish, now)
    if done is None:
        return await _apply(db, changes, wish, now)
    applied, others = done
    if not others:
        return applied
    rest = await _apply(db, [changes[place] for place in others], wish, now)
    for place, result in zip(others, rest.results, strict=True):
        applied.results[place] = result
    return Applied(rest.now, applied.results, rest.claimed)


async def _apply(db: Database, changes: Sequence[Change], wish: Wish | None, now: Ms | None) -> Applied:
    batch = encode([pack_change(change) for change in changes])
    wished = "" if wish is None else encode((pack_offer(wish.offer), wish.limit))
    wall, answers, claimed = await db.write(APPLY, db.now(now), batch, wished)
    results = [_result(change, answer) for change, answer in zip(changes, answers, strict=True)]
    return Applied(wall, results, None if claimed is None else read_claimed(claimed))


def _result(change: Change, answer: Any) -> Result:
    if isinstance(answer, int):
        return _ACCEPTED[answer] if answer < len(_ACCEPTED) else Result("accepted", answer)
    status, n, row = answer
    about_run = isinstance(change.guard, RunLease | RunAt | RunAbsent)
    current = None if row is None else (read_run if about_run else read_schedule)(row)
    return Result("repeated" if status == _REPEATED else "refused", n, current)


def pack_change(change: Change) -> list[Any]:
    """A change as lua/apply.lua reads it; what it does not bring at the end is left away."""
    guard = change.guard
    moves = Counter(event.run_id for event in change.events if isinstance(event, RunEvent))
    packed: list[Any]
    if isinstance(guard, RunLease):
        packed = [_RUN_LEASE, guard.id, change.id, guard.epoch, _values(_run(change))]
    elif isinstance(guard, RunAt):
        run = _run(change)
        key = None if run.unique_key is None else f"{run.ns}\0{run.unique_key}"
        packed = [_RUN_AT, guard.id, change.id, guard.n, [*_values(run), None, run.cancel, run.body, key]]
    elif isinstance(guard, RunAbsent):
        run = _run(change)
        key = None if guard.unique_key is None else f"{run.ns}\0{guard.unique_key}"
        packed = [_RUN_ABSENT, guard.id, change.id, key, pack_birth(run, moves[run.id])]
    elif isinstance(guard, ScheduleAt | ScheduleAbsent):
        schedule = change.schedule
        assert schedule is not None, "a guard on a schedule needs the schedule's values"
        own = sum(isinstance(e, ScheduleEvent) and e.schedule_id == schedule.id for e in change.events)
        values = pack_schedule(schedule, own)
        if isinstance(guard, ScheduleAt):
            asked = (guard.revision, guard.cursor, guard.n, guard.touched)
            packed = [_SCHEDULE_AT, guard.id, change.id, asked, values]
        else:
            packed = [_SCHEDULE_ABSENT, guard.id, change.id, f"{guard.ns}\0{guard.name}", values]
    else:
        packed = [_NOTHING, "", change.id, None, None]
    packed.append([pack_birth(run, moves[run.id]) for run in change.runs])
    packed.append([_event(event, change.id) for event in change.events])
    if change.bodies or change.gates or change.touches or change.releases or change.spans:
        packed += (
            [(body.id, body.data) for body in change.bodies],
            [astuple(gate) for gate in change.gates],
            change.touches,
            change.releases,
            [pack_span(span) for span in change.spans],
        )
    return packed


def _run(change: Change) -> Run:
    assert change.run is not None, "a guard on a run needs the run's values"
    return change.run


def _values(run: Run) -> list[Any]:
    return [
        run.state,
        run.ready_at,
        run.failures,
        run.crashes,
        run.reason,
        run.result,
        run.error,
        run.began_at,
        run.ms,
        run.dead,
    ]


def _event(event: Event, change: str) -> tuple[Any, ...]:
    rest = raw(event_rest(event, change))
    if isinstance(event, RunEvent):
        return _RUN_EVENT, event.run_id, rest
    if isinstance(event, ScheduleEvent):
        return _SCHEDULE_EVENT, event.schedule_id, rest
    return _NOTE, event.run_id, rest
