"""The store's method `apply`: write a batch of changes by one or two scripts.

A script checks the guards of all changes before it writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple

from mainspring.backends.redis.claim import claim, pack_offer, read_claimed
from mainspring.backends.redis.database import Database
from mainspring.backends.redis.fast.complete_runs import complete_runs, is_plain_success
from mainspring.backends.redis.fast.insert_runs import insert_runs
from mainspring.backends.redis.rows import (
    encode,
    encode_event_rest,
    pack_bytes,
    pack_new_run,
    pack_schedule,
    pack_span,
    read_run,
    read_schedule,
)
from mainspring.backends.redis.scripts import load
from mainspring.model.change import Change, Result, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.events import Event, RunEvent, ScheduleEvent
from mainspring.model.ids import RunId
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.ports.store import Applied, ClaimRequest

APPLY = load("apply", "common", "claim_runs", "apply")

# Codes that lua/apply.lua uses for guards, events and answers.
_NOTHING, _RUN_LEASE, _RUN_AT, _RUN_ABSENT, _SCHEDULE_AT, _SCHEDULE_ABSENT = range(6)
_RUN_EVENT, _SCHEDULE_EVENT, _NOTE = 1, 2, 3
_REPEATED = 2
#: Shared results for the usual numbers of events (the index), so that a result costs no allocation.
_ACCEPTED = tuple(Result("accepted", n) for n in range(16))


async def apply(db: Database, changes: Sequence[Change], claim_request: ClaimRequest | None, now: Ms | None) -> Applied:
    """Write a batch, each change all or nothing, then claim runs if requested; return the results and the claim.

    There is a short script for new runs that only wait for a worker. Another is for plain successes: successes of runs
    that are not parked, leave no gate and have no request to cancel. A batch of both kinds takes two calls, the new
    runs first: two short scripts cost less than the long script, and neither part depends on the other. `now`: the
    instant of a test, else None. Raises: ConnectionLost, StoreError; some of the changes may then be written.
    """
    db.reach("apply:begin")
    others = [position for position, change in enumerate(changes) if type(change.guard) is not RunLease]
    if not others:
        return await _apply_outcomes(db, changes, claim_request, now)
    if len(others) == len(changes):
        return await _apply_without_outcomes(db, changes, claim_request, now)
    return await _apply_mixed(db, changes, others, claim_request, now)


async def _apply_without_outcomes(
    db: Database, changes: Sequence[Change], claim_request: ClaimRequest | None, now: Ms | None
) -> Applied:
    """Write a batch in which no change has a guard on a run's lease, then claim if requested.

    If the batch only inserts runs that wait for a worker, lua/insert_runs.lua writes it, and a further call claims.
    Otherwise lua/apply.lua does both.
    """
    inserted = await insert_runs(db, changes, now)
    if inserted is None:
        return await _apply_any(db, changes, claim_request, now)
    if claim_request is None:
        return inserted
    claimed = await claim(db, claim_request.offer, claim_request.limit, (), now)
    return Applied(claimed.now, inserted.results, claimed)


async def _apply_mixed(
    db: Database, changes: Sequence[Change], others: Sequence[int], claim_request: ClaimRequest | None, now: Ms | None
) -> Applied:
    """Write a batch of outcomes (changes with a guard on a run's lease) and other changes, then claim if requested.

    Two short scripts do it if all outcomes are plain successes and all other changes only insert runs that wait for a
    worker. Otherwise the long script does it. `others`: the positions in the batch of the changes that are not
    outcomes.
    """
    outcomes = [position for position, change in enumerate(changes) if type(change.guard) is RunLease]
    if not all(is_plain_success(changes[position]) for position in outcomes):
        return await _apply_any(db, changes, claim_request, now)
    inserted = await insert_runs(db, [changes[position] for position in others], now)
    if inserted is None:
        return await _apply_any(db, changes, claim_request, now)
    applied = await _apply_outcomes(db, [changes[position] for position in outcomes], claim_request, now)
    results = dict(zip(others, inserted.results, strict=True))
    results.update(zip(outcomes, applied.results, strict=True))
    return Applied(applied.now, [results[position] for position in range(len(changes))], applied.claimed)


async def _apply_outcomes(
    db: Database, changes: Sequence[Change], claim_request: ClaimRequest | None, now: Ms | None
) -> Applied:
    """Write outcomes of claimed runs (changes with a guard on the run's lease), then claim if requested.

    If all outcomes are plain successes, lua/complete_runs.lua writes them and claims. If it leaves some unwritten, it
    does not claim: lua/apply.lua then writes these and claims. If there are other outcomes, lua/apply.lua writes the
    whole batch and claims.
    """
    completed = await complete_runs(db, changes, claim_request, now)
    if completed is None:
        return await _apply_any(db, changes, claim_request, now)
    applied, unwritten = completed
    if not unwritten:
        return applied
    rest = await _apply_any(db, [changes[position] for position in unwritten], claim_request, now)
    for position, result in zip(unwritten, rest.results, strict=True):
        applied.results[position] = result
    return Applied(rest.now, applied.results, rest.claimed)


async def _apply_any(
    db: Database, changes: Sequence[Change], claim_request: ClaimRequest | None, now: Ms | None
) -> Applied:
    """Write a batch of any changes by one call of lua/apply.lua, which also claims if requested."""
    batch = encode([pack_change(change) for change in changes])
    packed_request = "" if claim_request is None else encode((pack_offer(claim_request.offer), claim_request.limit))
    store_now, answers, claimed = await db.run_write(APPLY, db.now(now), batch, packed_request)
    results = [_parse_answer(change, answer) for change, answer in zip(changes, answers, strict=True)]
    return Applied(store_now, results, None if claimed is None else read_claimed(claimed))


def _parse_answer(change: Change, answer: Any) -> Result:
    """Return the result of a change.

    `answer`: the answer of lua/apply.lua to the change. If the change was accepted, it is the number of the guarded
    row's last event, or 0. Otherwise it is a list: a status, the number of the last event of the row that refused the
    change, and this row, None if there is no such row.
    """
    if isinstance(answer, int):
        return _ACCEPTED[answer] if answer < len(_ACCEPTED) else Result("accepted", answer)
    status, n, row = answer
    about_run = isinstance(change.guard, RunLease | RunAt | RunAbsent)
    current = None if row is None else (read_run if about_run else read_schedule)(row)
    return Result("repeated" if status == _REPEATED else "refused", n, current)


def pack_change(change: Change) -> list[Any]:
    """Return a change as lua/apply.lua reads it: its guard with the new values, its new runs, its events.

    Payloads, gates, touches, releases and spans follow, unless the change has none of them.
    """
    moves = Counter(event.run_id for event in change.events if isinstance(event, RunEvent))
    packed = _pack_guard(change, moves)
    packed.append([pack_new_run(run, moves[run.id]) for run in change.runs])
    packed.append([_pack_event(event, change.id) for event in change.events])
    if change.bodies or change.gates or change.touches or change.releases or change.spans or _pack_cut(change):
        packed += _pack_other_rows(change)
    return packed


def _pack_other_rows(change: Change) -> tuple[Sequence[Any], ...]:
    """Return the last parts of a packed change: payloads, gates, touches, releases and spans."""
    return (
        [(body.id, body.data) for body in change.bodies],
        [astuple(gate) for gate in change.gates],
        change.touches,
        change.releases,
        [pack_span(span) for span in change.spans],
        *_pack_cut(change),
    )


def _pack_cut(change: Change) -> list[tuple[str, Ms]]:
    """Return the schedule whose spans are cut and the instant, as a list of one; empty if the change cuts none."""
    if change.cut_spans is None or change.schedule is None:
        return []
    return [(change.schedule.id, change.cut_spans)]


def _pack_guard(change: Change, moves: Counter[RunId | None]) -> list[Any]:
    """Return the first items of a packed change: kind of guard, guarded id, change id, expected value, new values.

    `moves`: run id → number of the run's events in the change. For a change without a guard, the id is "" and the
    values are None.
    """
    guard = change.guard
    if isinstance(guard, RunLease):
        return [_RUN_LEASE, guard.id, change.id, guard.epoch, _pack_outcome(_guarded_run(change))]
    if isinstance(guard, RunAt):
        run = _guarded_run(change)
        key = None if run.unique_key is None else f"{run.ns}\0{run.unique_key}"
        return [_RUN_AT, guard.id, change.id, guard.n, [*_pack_outcome(run), None, run.cancel, run.body, key]]
    if isinstance(guard, RunAbsent):
        run = _guarded_run(change)
        key = None if guard.unique_key is None else f"{run.ns}\0{guard.unique_key}"
        return [_RUN_ABSENT, guard.id, change.id, key, pack_new_run(run, moves[run.id])]
    if isinstance(guard, ScheduleAt):
        new = change.schedule if guard.old_name is not None else None
        new_name = None if new is None else f"{new.ns}\0{new.name}"
        expected = (guard.revision, guard.cursor, guard.n, guard.touched, new_name)
        return [_SCHEDULE_AT, guard.id, change.id, expected, _pack_guarded_schedule(change)]
    if isinstance(guard, ScheduleAbsent):
        name = f"{guard.ns}\0{guard.name}"
        return [_SCHEDULE_ABSENT, guard.id, change.id, name, _pack_guarded_schedule(change)]
    return [_NOTHING, "", change.id, None, None]


def _pack_guarded_schedule(change: Change) -> tuple[Any, ...]:
    """Return the new values of the schedule that a change guards, with the number of its events in the change."""
    schedule = change.schedule
    assert schedule is not None, "a guard on a schedule needs the schedule's values"
    moves = sum(isinstance(event, ScheduleEvent) and event.schedule_id == schedule.id for event in change.events)
    return pack_schedule(schedule, moves)


def _guarded_run(change: Change) -> Run:
    assert change.run is not None, "a guard on a run needs the run's values"
    return change.run


def _pack_outcome(run: Run) -> list[Any]:
    """Return the new values that a change sets on its guarded run, in the order of `RUN_VALUES` (model/change.py)."""
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


def _pack_event(event: Event, change: str) -> tuple[Any, ...]:
    """Return an event as lua/apply.lua reads it: its kind, the id of its run or schedule, and its encoded fields.

    The script adds the fields `at` and `n`. `change`: the id of the event's change.
    """
    rest = pack_bytes(encode_event_rest(event, change))
    if isinstance(event, RunEvent):
        return _RUN_EVENT, event.run_id, rest
    if isinstance(event, ScheduleEvent):
        return _SCHEDULE_EVENT, event.schedule_id, rest
    return _NOTE, event.run_id, rest
