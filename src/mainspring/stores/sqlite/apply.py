"""The one write: guards, rows and events of a batch in a constant number of statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from mainspring.model.change import Change, Result, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.events import RunEvent, ScheduleEvent
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Applied, Claimed, Wish
from mainspring.stores.sqlite import apply_sql as sql
from mainspring.stores.sqlite.begun import Surprised, begun
from mainspring.stores.sqlite.births import birth, births
from mainspring.stores.sqlite.claim import claim, claim_here
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.gates import leave_gates, put_gates
from mainspring.stores.sqlite.new_schedules import new_schedules
from mainspring.stores.sqlite.plans import plans
from mainspring.stores.sqlite.rows import (
    INSERT_EVENTS,
    event_row,
    insert_runs,
    mark_of,
    moves_of,
    pack,
)
from mainspring.stores.sqlite.segment import Segment, moves_by_run, new_run, segments
from mainspring.stores.sqlite.successes import successes

_pairs = msgspec.json.Decoder(list[tuple[int, int]])
_refused_runs = msgspec.json.Decoder(list[tuple[int, int, Run]], strict=False)
_refused_schedules = msgspec.json.Decoder(list[tuple[int, int, Schedule]])


def apply(db: Database, changes: Sequence[Change], wish: Wish | None, now: Ms | None) -> Applied:
    """One transaction for the batch; each change all or nothing."""
    if not changes:
        claimed = None if wish is None else claim(db, wish.offer, wish.limit, (), now)
        return Applied(db.clocks(now)[0] if claimed is None else claimed.now, [], claimed)
    try:
        return _apply(db, changes, wish, now, begins=not db.refused)
    except Surprised:
        return _apply(db, changes, wish, now, begins=False)


def _apply(db: Database, changes: Sequence[Change], wish: Wish | None, now: Ms | None, *, begins: bool) -> Applied:
    """`begins`: fires may be planned and claimed by the shortest way."""
    wall, lease_now = db.granting(now)
    claimed: Claimed | None = None
    first = db.marks(len(changes) + 1)
    results: list[Result] = [Result("refused")] * len(changes)
    with db.write("apply"):
        db.reach("apply:begin")
        mark = first + len(changes)
        alone = birth(db, changes[0], mark, wall) if len(changes) == 1 else None
        if alone is not None:
            results[0], rest = alone, []
        else:
            rest = successes(db, changes, results, mark, wall)
        for _, change in rest if db.claimed else ():
            if isinstance(change.guard, RunLease):
                db.claimed.pop(change.guard.id, None)
        if begins and rest and wish is not None and len(wish.offer.lanes) == 1:
            claimed = begun(db, rest, results, mark, wall, lease_now, wish)
        if claimed is not None:
            rest = []
        rest = plans(db, rest, results, mark, wall) if rest else rest
        if rest and not (births(db, rest, results, mark, wall) or new_schedules(db, rest, results, mark, wall)):
            for segment in segments(rest, first, wall):
                _apply_segment(db, segment, results)
        if wish is not None and claimed is None:
            claimed = claim_here(db, wish.offer, wish.limit, (), wall, lease_now)
        parked = not any(change.releases for change in changes) or db.value(sql.ANY_PARKED) == 1
    for change, result in zip(changes, results, strict=True) if db.held else ():
        if result.status == "accepted" and isinstance(change.guard, RunLease | RunAt | ScheduleAt):
            db.held.pop(change.guard.id, None)
    return Applied(wall, results, claimed, parked)


def _apply_segment(db: Database, segment: Segment, results: list[Result]) -> None:
    accepted = _guard(db, segment)
    db.reach("apply:after_guard")
    holding = [(index, change) for index, change in segment.changes if index in accepted]
    _write_rows(db, holding, segment)
    db.reach("apply:after_rows")
    _append_events(db, holding, segment, accepted)
    db.reach("apply:after_events")
    for index, n in accepted.items():
        results[index] = Result("accepted", n)
    if len(holding) < len(segment.changes):
        lost = [(index, change) for index, change in segment.changes if index not in accepted]
        for index, result in _explain(db, lost):
            results[index] = result


def _guard(db: Database, segment: Segment) -> dict[int, int]:
    """Write the guarded rows whose guard holds; their indexes, with the number each row's stream is at."""
    first, wall = segment.first, segment.wall
    accepted: dict[int, int] = dict.fromkeys(segment.unguarded, 0)
    if segment.leaving:
        db.run(sql.LEAVE, pack(segment.leaving))
        rows = _marked(db, ((row[0], row[2]) for row in segment.leaving), first)
        accepted.update((index, 0) for index, _ in rows)
    if segment.staying:
        db.run(sql.STAY, pack(segment.staying))
        rows = _marked(db, ((row[0], row[2]) for row in segment.staying), first)
        accepted.update((index, 0) for index, _ in rows)
    if segment.ats:
        db.run(sql.UPDATE_AT, pack(segment.ats), wall)
        accepted.update(_marked(db, ((row[0], row[2]) for row in segment.ats), first))
        db.run(sql.UPDATE_BODIES, pack(segment.bodies))
    if segment.absent:
        if db.run_rows(*insert_runs(segment.absent), wall) == len(segment.absent):
            accepted.update((mark_of(row) - first, moves_of(row)) for row in segment.absent)
        else:
            accepted.update(_marked(db, ((row[0], mark_of(row)) for row in segment.absent), first))
    if segment.schedules:
        packed = pack(segment.schedules)
        before = db.changed
        db.run(sql.UPDATE_SCHEDULES, packed, wall)
        if segment.redefines:
            db.run(sql.REDEFINE_SCHEDULES, packed)
        elif db.changed - before == len(segment.schedules):
            packed = ""
        if packed:
            accepted.update(_marks(db.value(sql.MOVED_SCHEDULES, packed), first))
        else:
            accepted.update(segment.moved)
    if segment.new_schedules:
        packed = pack(segment.new_schedules)
        db.run(sql.INSERT_SCHEDULES, packed, wall)
        accepted.update(_marks(db.value(sql.MOVED_SCHEDULES, packed), first))
    return accepted


def _marked(db: Database, rows: Iterable[tuple[Any, int]], first: int) -> list[tuple[int, int]]:
    """Of runs and the marks they should carry: the indexes of those that do, with their numbers."""
    return _marks(db.value(sql.MARKED_RUNS, pack(list(rows))), first)


def _marks(text: str, first: int) -> list[tuple[int, int]]:
    return [(mark - first, n) for mark, n in _pairs.decode(text)]


def _write_rows(db: Database, holding: list[tuple[int, Change]], segment: Segment) -> None:
    """Everything a change brings beside its guarded row; "exists" means nothing to do."""
    runs: list[list[Any]] = []
    spans: list[Any] = []
    bodies: dict[str, str] = {}
    gates: list[Any] = []
    touches: Counter[str] = Counter()
    left: list[str] = []
    for index, change in holding:
        moves = moves_by_run(change) if change.runs else {}
        for run in change.runs:
            runs.append(new_run(run, moves[run.id], segment.wall, segment.first + index, None))
        for body in change.bodies:
            bodies.setdefault(body.id, body.data)
        for span in change.spans:
            spans.append(msgspec.structs.astuple(span))
        for gate in change.gates:
            gates.append((gate.name, gate.max, gate.held, gate.closed_until))
        if change.touches:
            touches.update(change.touches)
        left += change.releases
    if bodies:
        db.run(sql.INSERT_BODIES, pack(list(bodies.items())))
    if gates:
        put_gates(db, gates)
    if runs:
        db.run_rows(*insert_runs(runs), segment.wall)
    if spans:
        db.run(sql.INSERT_SPANS, pack(spans))
    if touches:
        db.run(sql.TOUCH_SCHEDULES, pack(list(touches.items())))
    if left:
        leave_gates(db, left)


def _append_events(db: Database, holding: list[tuple[int, Change]], segment: Segment, accepted: dict[int, int]) -> None:
    rows: list[list[Any]] = []
    for index, change in holding:
        mark = segment.first + index
        events = change.events
        if len(events) == 1 and isinstance(events[0], RunEvent):
            rows.append(event_row(events[0], change.id, mark, 0))
            continue
        moves: Counter[str | None] = Counter(
            e.run_id if isinstance(e, RunEvent) else e.schedule_id
            for e in events
            if isinstance(e, RunEvent | ScheduleEvent)
        )
        guarded = change.guard.id if change.guard is not None else None
        seen: dict[str | None, int] = {}
        for event in events:
            if isinstance(event, RunEvent):
                number = seen[event.run_id] = seen.get(event.run_id, 0) + 1
                rows.append(event_row(event, change.id, mark, moves[event.run_id] - number))
            elif isinstance(event, ScheduleEvent):
                number = seen[event.schedule_id] = seen.get(event.schedule_id, 0) + 1
                before = accepted[index] - moves[guarded] if event.schedule_id == guarded else 0
                rows.append(event_row(event, change.id, None, before + number))
            else:
                rows.append(event_row(event, change.id, None, None))
    if rows:
        db.run_rows(INSERT_EVENTS, rows, segment.wall)


def _explain(db: Database, lost: list[tuple[int, Change]]) -> Iterable[tuple[int, Result]]:
    """Why guards did not hold: the row as it is, and whether this very change wrote it before."""
    runs: list[Any] = []
    schedules: list[Any] = []
    for index, change in lost:
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
            yield index, _result(current, repeated == 1)
    if schedules:
        for index, repeated, schedule in _refused_schedules.decode(db.value(sql.REFUSED_SCHEDULES, pack(schedules))):
            yield index, _result(schedule, repeated == 1)


def _result(current: Run | Schedule, repeated: bool) -> Result:
    return Result("repeated" if repeated else "refused", current.n, current)
