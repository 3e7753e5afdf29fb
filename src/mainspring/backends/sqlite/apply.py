"""The store's `apply`: write the changes of a batch in few statements, each change only if its guard holds.

How it finds out which guards held: each change writes a number of its own into the column `mark` of its rows. The rows
that have the number afterwards were written. `apply_sql` explains the marks and lists the statements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from mainspring.backends.change_batches import IndexedChanges
from mainspring.backends.sqlite import apply_sql as sql
from mainspring.backends.sqlite.batch_rows import Segment, count_events_by_run, new_run_row, split_segments
from mainspring.backends.sqlite.claim import claim, claim_in_transaction
from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.fast.advance_schedules import advance_schedules
from mainspring.backends.sqlite.fast.complete_runs import complete_runs
from mainspring.backends.sqlite.fast.insert_runs import insert_run, insert_runs
from mainspring.backends.sqlite.fast.insert_schedules import insert_schedules
from mainspring.backends.sqlite.fast.plan_and_claim import FastPathMissed, plan_and_claim
from mainspring.backends.sqlite.gates import put_gates, release_gates
from mainspring.backends.sqlite.rows import INSERT_EVENTS, event_row, insert_runs_statement, pack, row_mark, row_n
from mainspring.model.change import Change, Result, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.events import RunEvent, ScheduleEvent
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Applied, Claimed, ClaimRequest

_pairs = msgspec.json.Decoder(list[tuple[int, int]])
#: Rows of `sql.REFUSED_RUNS` and `sql.REFUSED_SCHEDULES`: index of the change, 1 if it was accepted before, else 0, and
#: the run or schedule that refused it.
_refused_runs = msgspec.json.Decoder(list[tuple[int, int, Run]], strict=False)
_refused_schedules = msgspec.json.Decoder(list[tuple[int, int, Schedule]])


def apply(db: Database, changes: Sequence[Change], claim_request: ClaimRequest | None, now: Ms | None) -> Applied:
    """Write the batch in one transaction, each change all or nothing, and make the requested claim in it, if any.

    If the fast path `plan_and_claim` fails after it has written something, the transaction is rolled back, and the
    batch is written again without that path. An empty batch only claims. `now`: the time to use, for tests; None: what
    the clock shows.
    """
    if not changes:
        claimed = None if claim_request is None else claim(db, claim_request.offer, claim_request.limit, (), now)
        return Applied(db.clocks(now)[0] if claimed is None else claimed.now, [], claimed)
    try:
        return _apply(db, changes, claim_request, now, can_start=not db.gates_refused)
    except FastPathMissed:
        return _apply(db, changes, claim_request, now, can_start=False)


def _apply(
    db: Database, changes: Sequence[Change], claim_request: ClaimRequest | None, now: Ms | None, *, can_start: bool
) -> Applied:
    """Write the changes and make the claim in one transaction; `claim_request` None: make no claim.

    `now`: the time to use, for tests; None: what the clock shows. `can_start`: the fast path `plan_and_claim` may write
    fires as running. Raises: `FastPathMissed` if this path fails after it has written something; the transaction is
    rolled back.
    """
    wall, lease_now = db.lease_clocks(now)
    claimed: Claimed | None = None
    first = db.reserve_marks(len(changes) + 1)
    results: list[Result] = [Result("refused")] * len(changes)
    with db.write("apply"):
        db.reach("apply:begin")
        rest = _write_frequent(db, changes, results, first, wall)
        if can_start and rest and claim_request is not None and len(claim_request.offer.lanes) == 1:
            claimed = plan_and_claim(db, rest, results, first + len(changes), wall, lease_now, claim_request)
        if claimed is None:
            _write_others(db, rest, results, first, wall)
            if claim_request is not None:
                claimed = claim_in_transaction(db, claim_request.offer, claim_request.limit, (), wall, lease_now)
        parked = not any(change.releases for change in changes) or db.value(sql.ANY_PARKED) == 1
    _end_holds(db, changes, results)
    return Applied(wall, results, claimed, parked)


def _write_frequent(
    db: Database, changes: Sequence[Change], results: list[Result], first: int, wall: Ms
) -> IndexedChanges:
    """Write the most frequent changes by fast paths: a batch of one new run, or the plain successes in a batch.

    A plain success ends a run that this store object claimed and that has no unique key. Set the `results` of the
    written changes; return the other changes with their indexes. If one of the other changes is made under a run's
    lease, this run is removed from `db.claimed_runs`. `first`: the batch's first number for the column `mark`. `wall`:
    the present time.
    """
    mark = first + len(changes)
    if len(changes) == 1:
        inserted = insert_run(db, changes[0], mark, wall)
        if inserted is not None:
            results[0] = inserted
            return []
    rest = complete_runs(db, changes, results, mark, wall)
    for _, change in rest if db.claimed_runs else ():
        if isinstance(change.guard, RunLease):
            db.claimed_runs.pop(change.guard.id, None)
    return rest


def _write_others(db: Database, rest: IndexedChanges, results: list[Result], first: int, wall: Ms) -> None:
    """Write the changes that `_write_frequent` has left in `rest`, and set their `results`.

    Fast paths for plans, new runs and new schedules go first; general statements write what is left, in segments of
    independent changes. `first`: the number for the column `mark` of the batch's first change. `wall`: the present
    time.
    """
    mark = first + len(results)
    rest = advance_schedules(db, rest, results, mark, wall) if rest else rest
    if rest and not (insert_runs(db, rest, results, mark, wall) or insert_schedules(db, rest, results, mark, wall)):
        for segment in split_segments(rest, first, wall):
            _apply_segment(db, segment, results)


def _end_holds(db: Database, changes: Sequence[Change], results: list[Result]) -> None:
    """End the holds that `due` put on the rows guarded by accepted changes, because such a row may be due again."""
    for change, result in zip(changes, results, strict=True) if db.held_until else ():
        if result.status == "accepted" and isinstance(change.guard, RunLease | RunAt | ScheduleAt):
            db.held_until.pop(change.guard.id, None)


def _apply_segment(db: Database, segment: Segment, results: list[Result]) -> None:
    """Write those changes of a segment whose guards hold, and set the results of all its changes."""
    accepted = _write_guarded_rows(db, segment)
    db.reach("apply:after_guard")
    holding = [(index, change) for index, change in segment.changes if index in accepted]
    _write_extras(db, holding, segment)
    db.reach("apply:after_rows")
    _append_events(db, holding, segment, accepted)
    db.reach("apply:after_events")
    for index, n in accepted.items():
        results[index] = Result("accepted", n)
    if len(holding) < len(segment.changes):
        refused = [(index, change) for index, change in segment.changes if index not in accepted]
        for index, result in _explain_refusals(db, refused):
            results[index] = result


# ── guarded rows ────────────────────────────────────────────────────────────


def _write_guarded_rows(db: Database, segment: Segment) -> dict[int, int]:
    """Write each guarded row whose guard holds. Return, for each accepted change, its index in the batch → the new `n`.

    Changes without a guard are accepted, too. For these, and for rows guarded by a lease, 0 is returned instead of `n`,
    because no caller needs it.
    """
    accepted: dict[int, int] = dict.fromkeys(segment.unguarded, 0)
    for statement, rows in ((sql.END_ATTEMPTS, segment.leaving), (sql.KEEP_RUNNING, segment.staying)):
        if rows:
            db.run(statement, pack(rows))
            accepted.update((index, 0) for index, _ in _read_marks(db, _ids_and_marks(rows), segment.first))
    if segment.ats:
        db.run(sql.UPDATE_AT, pack(segment.ats), segment.wall)
        accepted.update(_read_marks(db, _ids_and_marks(segment.ats), segment.first))
        db.run(sql.UPDATE_BODIES, pack(segment.bodies))
    if segment.absent:
        accepted.update(_insert_guarded_runs(db, segment))
    if segment.schedules:
        accepted.update(_update_schedules(db, segment))
    if segment.new_schedules:
        packed = pack(segment.new_schedules)
        db.run(sql.INSERT_SCHEDULES, packed, segment.wall)
        accepted.update(_decode_marks(db.value(sql.MARKED_SCHEDULES, packed), segment.first))
    return accepted


def _insert_guarded_runs(db: Database, segment: Segment) -> Iterable[tuple[int, int]]:
    """Insert the segment's runs that must not exist yet; return (index of the change, `n`) of each inserted run.

    `n` is the number of the run's events.
    """
    first = segment.first
    if db.run_rows(*insert_runs_statement(segment.absent), segment.wall) == len(segment.absent):
        return [(row_mark(row) - first, row_n(row)) for row in segment.absent]
    return _read_marks(db, ((row[0], row_mark(row)) for row in segment.absent), first)


def _update_schedules(db: Database, segment: Segment) -> Iterable[tuple[int, int]]:
    """Update the schedules of a segment whose guards hold; return (index of the change, new `n`) of each of these."""
    packed = pack(segment.schedules)
    before = db.rows_changed
    db.run(sql.UPDATE_SCHEDULES, packed, segment.wall)
    if segment.redefines:
        db.run(sql.REDEFINE_SCHEDULES, packed)
    elif db.rows_changed - before == len(segment.schedules):
        return segment.moved
    return _decode_marks(db.value(sql.MARKED_SCHEDULES, packed), segment.first)


def _ids_and_marks(rows: Iterable[list[Any]]) -> Iterable[tuple[Any, int]]:
    return ((row[0], row[2]) for row in rows)


def _read_marks(db: Database, rows: Iterable[tuple[Any, int]], first: int) -> list[tuple[int, int]]:
    """Return (index of the change, `n`) of each run that its change has written, as the column `mark` shows.

    `rows`: (run id, the number that its change writes into `mark`). `first`: the number that the batch's first change
    writes.
    """
    return _decode_marks(db.value(sql.MARKED_RUNS, pack(list(rows))), first)


def _decode_marks(text: str, first: int) -> list[tuple[int, int]]:
    return [(mark - first, n) for mark, n in _pairs.decode(text)]


# ── other rows, and events ──────────────────────────────────────────────────


def _write_extras(db: Database, holding: IndexedChanges, segment: Segment) -> None:
    """Write what the accepted changes contain in addition to guarded rows and events.

    That is: runs, payloads, gates, spans, touches and releases of gates. `holding`: the accepted changes of `segment`,
    which itself gives only the time and the numbers for the column `mark`. A run or payload that exists is left as it
    is; of a gate that exists, only `max` is changed.
    """
    runs: list[list[Any]] = []
    spans: list[Any] = []
    cuts: list[Any] = []
    bodies: dict[str, str] = {}
    gates: list[Any] = []
    touches: Counter[str] = Counter()
    releases: list[str] = []
    for index, change in holding:
        event_counts = count_events_by_run(change) if change.runs else {}
        runs += [
            new_run_row(run, event_counts[run.id], segment.wall, segment.first + index, None) for run in change.runs
        ]
        for body in change.bodies:
            bodies.setdefault(body.id, body.data)
        spans += map(msgspec.structs.astuple, change.spans)
        if change.cut_spans is not None and change.schedule is not None:
            cuts.append((change.schedule.id, change.cut_spans))
        gates += [(gate.name, gate.max, gate.held, gate.closed_until) for gate in change.gates]
        if change.touches:
            touches.update(change.touches)
        releases += change.releases
    if bodies:
        db.run(sql.INSERT_BODIES, pack(list(bodies.items())))
    if gates:
        put_gates(db, gates)
    if runs:
        db.run_rows(*insert_runs_statement(runs), segment.wall)
    if cuts:
        db.run(sql.CUT_SPANS, pack(cuts))
    if spans:
        db.run(sql.INSERT_SPANS, pack(spans))
    if touches:
        db.run(sql.TOUCH_SCHEDULES, pack(list(touches.items())))
    if releases:
        release_gates(db, releases)


def _append_events(db: Database, holding: IndexedChanges, segment: Segment, accepted: dict[int, int]) -> None:
    """Append the events of the accepted changes (`holding`), numbered run by run and schedule by schedule.

    `accepted`: index of a change → new `n` of its guarded row. Events of new runs that existed already are left
    out. Events that belong to no run and no schedule get no number.
    """
    rows: list[list[Any]] = []
    for index, change in holding:
        mark = segment.first + index
        events = change.events
        if len(events) == 1 and isinstance(events[0], RunEvent):
            rows.append(event_row(events[0], change.id, mark, 0))
        else:
            rows += _event_rows(change, mark, accepted[index])
    if rows:
        db.run_rows(INSERT_EVENTS, rows, segment.wall)


def _event_rows(change: Change, mark: int, n: int) -> list[list[Any]]:
    """Return a row for `INSERT_EVENTS` for each event of the change.

    `mark`: the number that the change writes into the column `mark`. `n`: the guarded row's number of events after the
    change.

    For an event of a run, the row has the number of later events of that run in the change. The statement subtracts it
    from the `n` in the run's row, which is written already.
    """
    rows: list[list[Any]] = []
    event_counts: Counter[str | None] = Counter(
        e.run_id if isinstance(e, RunEvent) else e.schedule_id
        for e in change.events
        if isinstance(e, RunEvent | ScheduleEvent)
    )
    guarded = change.guard.id if change.guard is not None else None
    seen: dict[str | None, int] = {}
    for event in change.events:
        if isinstance(event, RunEvent):
            number = seen[event.run_id] = seen.get(event.run_id, 0) + 1
            rows.append(event_row(event, change.id, mark, event_counts[event.run_id] - number))
        elif isinstance(event, ScheduleEvent):
            number = seen[event.schedule_id] = seen.get(event.schedule_id, 0) + 1
            before = n - event_counts[guarded] if event.schedule_id == guarded else 0
            rows.append(event_row(event, change.id, None, before + number))
        else:
            rows.append(event_row(event, change.id, None, None))
    return rows


# ── refusals ────────────────────────────────────────────────────────────────


def _explain_refusals(db: Database, refused: IndexedChanges) -> Iterable[tuple[int, Result]]:
    """Yield (index in the batch, result) of each refused change. The result contains the row that refused it.

    The result is "repeated" if the change with this id was accepted before, else "refused". Changes for which there is
    no such row are left out: for them the caller has set "refused" already.
    """
    runs: list[Any] = []
    schedules: list[Any] = []
    for index, change in refused:
        guard = change.guard
        assert guard is not None
        new = [run.id for run in change.runs]
        if isinstance(guard, RunAbsent):
            run = change.run
            assert run is not None
            runs.append((index, guard.id, run.ns, guard.unique_key, change.id, run.schedule_id, run.fire_key, new))
        elif isinstance(guard, RunLease | RunAt):
            runs.append((index, guard.id, None, None, change.id, None, None, new))
        elif isinstance(guard, ScheduleAbsent):
            schedules.append((index, guard.id, guard.ns, guard.name, change.id, new))
        else:
            schedules.append((index, guard.id, None, None, change.id, new))
    if runs:
        for index, repeated, current in _refused_runs.decode(db.value(sql.REFUSED_RUNS, pack(runs))):
            yield index, _refusal(current, repeated == 1)
    if schedules:
        for index, repeated, schedule in _refused_schedules.decode(db.value(sql.REFUSED_SCHEDULES, pack(schedules))):
            yield index, _refusal(schedule, repeated == 1)


def _refusal(current: Run | Schedule, repeated: bool) -> Result:
    return Result("repeated" if repeated else "refused", current.n, current)
