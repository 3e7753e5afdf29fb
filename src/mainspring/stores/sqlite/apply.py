"""The one write: guards, rows and events of a batch in a constant number of statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from mainspring.model.change import Change, Result, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.events import RunEvent, ScheduleEvent
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, Run
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Applied
from mainspring.stores.sqlite import apply_sql as sql
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.rows import (
    INSERT_EVENTS,
    event_row,
    insert_runs,
    mark_of,
    moves_of,
    pack,
    read_runs,
    read_schedules,
    run_row,
)

_pairs = msgspec.json.Decoder(list[tuple[int, int]])
_moved = msgspec.json.Decoder(list[tuple[int, int, int]])
_refused = msgspec.json.Decoder(list[tuple[int, bool | int, msgspec.Raw]])


def apply(db: Database, changes: Sequence[Change], now: Ms | None) -> Applied:
    """One transaction for the batch; each change all or nothing."""
    wall, _ = db.clocks(now)
    if not changes:
        return Applied(wall, [])
    first = db.marks(len(changes))
    results: list[Result] = [Result("refused")] * len(changes)
    with db.write("apply"):
        db.reach("apply:begin")
        for segment in _segments(changes, first, wall):
            _apply_segment(db, segment, results)
    for change, result in zip(changes, results, strict=True) if db.held else ():
        if result.status == "accepted" and isinstance(change.guard, RunLease | RunAt | ScheduleAt):
            db.held.pop(change.guard.id, None)
    return Applied(wall, results)


class _Segment:
    """Changes that do not depend on each other, sorted by the statement that guards them."""

    def __init__(self, first: int, wall: Ms) -> None:
        self.first = first
        self.wall = wall
        self.changes: list[tuple[int, Change]] = []
        self.leases: list[list[Any]] = []
        self.ats: list[list[Any]] = []
        self.bodies: list[tuple[str, int, str | None]] = []
        self.absent: list[list[Any]] = []
        self.schedules: list[list[Any]] = []
        self.new_schedules: list[list[Any]] = []
        self.unguarded: list[int] = []
        self._rows: set[str] = set()
        self._freed: set[tuple[str, str]] = set()
        self._wanted: set[tuple[str, str]] = set()
        self._touched: set[str] = set()

    def fits(self, change: Change) -> bool:
        """False when the answer could depend on a change already here; then it waits for the next segment."""
        guard = change.guard
        if guard is not None and (guard.id in self._rows or guard.id in self._touched):
            return False
        key = _unique_key(change)
        if key is not None and (key in self._freed or (not isinstance(guard, RunAbsent) and key in self._wanted)):
            return False
        return not (change.touches and self._rows.intersection(change.touches))

    def add(self, index: int, change: Change) -> None:
        guard = change.guard
        mark = self.first + index
        self.changes.append((index, change))
        if guard is not None:
            self._rows.add(guard.id)
        for run in change.runs:
            self._rows.add(run.id)
        self._touched.update(change.touches)
        key = _unique_key(change)
        if key is not None:
            (self._wanted if isinstance(guard, RunAbsent) else self._freed).add(key)
        if isinstance(guard, RunLease | RunAt):
            run_ = _row(change.run)
            moves = sum(isinstance(e, RunEvent) and e.run_id == guard.id for e in change.events)
            lease = isinstance(guard, RunLease)
            (self.leases if lease else self.ats).append(
                [
                    guard.id,
                    guard.epoch if isinstance(guard, RunLease) else guard.n,
                    mark,
                    moves,
                    run_.state,
                    run_.ready_at,
                    run_.failures,
                    run_.crashes,
                    run_.reason,
                    run_.result,
                    run_.error,
                    run_.began_at,
                    run_.ms,
                    run_.dead,
                    run_.cancel,
                    run_.ns,
                    run_.unique_key,
                ]
            )
            self.bodies.append((guard.id, mark, run_.body))
        elif isinstance(guard, RunAbsent):
            self.absent.append(_new_run(_row(change.run), change, self.wall, mark, guard.unique_key))
        elif isinstance(guard, ScheduleAt | ScheduleAbsent):
            schedule = change.schedule
            assert schedule is not None
            moves = sum(isinstance(e, ScheduleEvent) and e.schedule_id == schedule.id for e in change.events)
            values = sql.schedule_values(schedule, mark, moves)
            if isinstance(guard, ScheduleAt):
                self.schedules.append([*values, guard.revision, guard.cursor, guard.n, guard.touched])
            else:
                self.new_schedules.append([*values, guard.id, guard.ns, guard.name])
        else:
            self.unguarded.append(index)


def _segments(changes: Sequence[Change], first: int, wall: Ms) -> Iterable[_Segment]:
    segment = _Segment(first, wall)
    for index, change in enumerate(changes):
        if not segment.fits(change):
            yield segment
            segment = _Segment(first, wall)
        segment.add(index, change)
    yield segment


def _row(run: Run | None) -> Run:
    assert run is not None, "a guard on a run needs the run's values"
    return run


def _unique_key(change: Change) -> tuple[str, str] | None:
    """What a change may take from, or leave to, another: a unique key, or a schedule's name."""
    guard = change.guard
    if isinstance(guard, RunAbsent):
        return None if guard.unique_key is None else (_row(change.run).ns, guard.unique_key)
    if isinstance(guard, RunLease | RunAt):
        run = _row(change.run)
        return None if run.unique_key is None else (run.ns, run.unique_key)
    if change.schedule is not None:
        return ("schedule " + change.schedule.ns, change.schedule.name)
    return None


def _new_run(run: Run, change: Change, wall: Ms, mark: int, guard_key: str | None) -> list[Any]:
    moves = sum(isinstance(e, RunEvent) and e.run_id == run.id for e in change.events)
    return run_row(run, moves, wall if run.state in ENDED else None, mark, guard_key)


def _apply_segment(db: Database, segment: _Segment, results: list[Result]) -> None:
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


def _guard(db: Database, segment: _Segment) -> dict[int, int]:
    """Write the guarded rows whose guard holds; their indexes, with the number each row's stream is at."""
    first, wall = segment.first, segment.wall
    accepted: dict[int, int] = dict.fromkeys(segment.unguarded, 0)
    if segment.leases:
        db.run(sql.UPDATE_LEASED, pack(segment.leases), wall)
    if segment.ats:
        db.run(sql.UPDATE_AT, pack(segment.ats), wall)
    if segment.bodies:
        moved = pack(segment.bodies)
        found = _moved.decode(db.value(sql.MOVED_RUNS, moved))
        accepted.update((mark - first, n) for mark, n, _ in found)
        if any(other_body for _, _, other_body in found):
            db.run(sql.UPDATE_BODIES, moved)
    if segment.absent:
        done = db.run(*insert_runs(segment.absent), wall).rowcount
        if done == len(segment.absent):
            accepted.update((mark_of(row) - first, moves_of(row)) for row in segment.absent)
        else:
            asked = pack([(row[0], mark_of(row)) for row in segment.absent])
            accepted.update(_marks(db.value(sql.INSERTED_RUNS, asked), first))
    if segment.schedules:
        rows = pack(segment.schedules)
        db.run(sql.UPDATE_SCHEDULES, rows, wall)
        db.run(sql.REDEFINE_SCHEDULES, rows)
        accepted.update(_marks(db.value(sql.MOVED_SCHEDULES, rows), first))
    if segment.new_schedules:
        rows = pack(segment.new_schedules)
        db.run(sql.INSERT_SCHEDULES, rows, wall)
        accepted.update(_marks(db.value(sql.MOVED_SCHEDULES, rows), first))
    return accepted


def _marks(text: str, first: int) -> list[tuple[int, int]]:
    return [(mark - first, n) for mark, n in _pairs.decode(text)]


def _write_rows(db: Database, holding: list[tuple[int, Change]], segment: _Segment) -> None:
    """Everything a change brings beside its guarded row; "exists" means nothing to do."""
    runs: list[list[Any]] = []
    spans: list[Any] = []
    bodies: dict[str, str] = {}
    gates: list[Any] = []
    touches: Counter[str] = Counter()
    releases: Counter[str] = Counter()
    for index, change in holding:
        for run in change.runs:
            runs.append(_new_run(run, change, segment.wall, segment.first + index, None))
        for body in change.bodies:
            bodies.setdefault(body.id, body.data)
        for span in change.spans:
            spans.append(msgspec.structs.astuple(span))
        for gate in change.gates:
            gates.append((gate.name, gate.max, gate.held, gate.closed_until))
        touches.update(change.touches)
        releases.update(change.releases)
    if bodies:
        db.run(sql.INSERT_BODIES, pack(list(bodies.items())))
    if gates:
        db.run(sql.UPSERT_GATES, pack(gates))
    if runs:
        db.run(*insert_runs(runs), segment.wall)
    if spans:
        db.run(sql.INSERT_SPANS, pack(spans))
    if touches:
        db.run(sql.TOUCH_SCHEDULES, pack(list(touches.items())))
    if releases:
        db.run(sql.RELEASE_GATES, pack(list(releases.items())))


def _append_events(
    db: Database, holding: list[tuple[int, Change]], segment: _Segment, accepted: dict[int, int]
) -> None:
    rows: list[list[Any]] = []
    for index, change in holding:
        mark = segment.first + index
        events = change.events
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
        db.run(INSERT_EVENTS, pack(rows), segment.wall)


def _explain(db: Database, lost: list[tuple[int, Change]]) -> Iterable[tuple[int, Result]]:
    """Why guards did not hold: the row as it is, and whether this very change wrote it before."""
    runs: list[Any] = []
    schedules: list[Any] = []
    for index, change in lost:
        guard = change.guard
        assert guard is not None
        new = [run.id for run in change.runs]
        if isinstance(guard, RunAbsent):
            run = _row(change.run)
            runs.append((index, guard.id, run.ns, guard.unique_key, change.id, run.schedule_id, run.fire_key, new))
        elif isinstance(guard, RunLease | RunAt):
            runs.append((index, guard.id, None, None, change.id, None, None, new))
        elif isinstance(guard, ScheduleAbsent):
            schedules.append((index, guard.id, guard.ns, guard.name, change.id, new))
        else:
            schedules.append((index, guard.id, None, None, change.id, new))
    if runs:
        for index, repeated, raw in _refused.decode(db.value(sql.REFUSED_RUNS, pack(runs))):
            yield index, _result(read_runs(f"[{bytes(raw).decode()}]")[0], bool(repeated))
    if schedules:
        for index, repeated, raw in _refused.decode(db.value(sql.REFUSED_SCHEDULES, pack(schedules))):
            yield index, _result(read_schedules(f"[{bytes(raw).decode()}]")[0], bool(repeated))


def _result(current: Run | Schedule, repeated: bool) -> Result:
    return Result("repeated" if repeated else "refused", current.n, current)
