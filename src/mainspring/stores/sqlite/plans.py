"""What planners write, by the shortest way: schedules move on or come to their end, and their fires are born."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.model.change import Change, Result, ScheduleAt
from mainspring.model.events import Event, RunEvent, RunScheduled, ScheduleFinished, encode_data
from mainspring.model.instant import Ms
from mainspring.model.run import OPEN
from mainspring.stores.batch import Indexed
from mainspring.stores.sqlite import apply_sql as sql
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.rows import INSERT_FRESH, is_fresh, pack, plain_text, run_row

_ids = msgspec.json.Decoder(list[str])


def plans(db: Database, changes: Indexed, results: list[Result], mark: int, wall: Ms) -> Indexed:
    """Write the batch if it is nothing but plain plans, as `apply` would; what is left to do is the answer."""
    rows: list[list[Any]] = []
    moved: list[tuple[Any, ...]] = []
    finished: list[tuple[Any, ...]] = []
    ids: set[str] = set()
    for _, change in changes:
        row = plain_plan(db, change, rows, mark)
        if row is None:
            return changes
        guard, schedule = change.guard, change.schedule
        assert guard is not None
        assert schedule is not None
        (finished if schedule.state == "finished" else moved).append(row)
        ids.add(guard.id)
    if len(ids) < len(changes) or not all(map(is_fresh, rows)):
        return changes
    count = db.run_rows(INSERT_FRESH, rows, wall)
    last: int = db.value("SELECT last_insert_rowid()") if count else 0
    if count < len(rows):  # one exists already: the long way says which
        db.run(sql.UNBORN, last - len(rows), last, mark)
        return changes
    first = last - count
    rest: Indexed = []
    written = db.run_rows(sql.MOVE_SCHEDULES, moved, mark) if moved else 0
    if finished:
        written += db.run_rows(sql.FINISH_SCHEDULES, finished, mark, wall)
    if written < len(changes):
        ids = set(_ids.decode(db.value(sql.MOVED_BY, pack(list(ids)), mark)))
    db.moved += written
    db.reach("apply:after_guard")
    births: list[tuple[Any, ...]] = []
    others: list[tuple[Any, ...]] = []
    for index, change in changes:
        guard = change.guard
        assert isinstance(guard, ScheduleAt)
        before, first = first, first + len(change.runs)
        if guard.id not in ids:  # it is looked at again, to be told why
            db.run(sql.UNBORN, before, first, mark)
            rest.append((index, change))
            continue
        n = guard.n
        for event in change.events:
            if not finished:
                before += 1
                births.append(birth_row(event, change, before))
            elif isinstance(event, RunEvent):
                before += 1
                others.append((event.ns, guard.id, before, event.run_id, 1, "RunScheduled", *_said(event, change)))
            else:
                n += 1
                others.append((event.ns, guard.id, None, None, n, "ScheduleFinished", *_said(event, change)))
        results[index] = Result("accepted", n)
    db.reach("apply:after_rows")
    if births:
        db.run_rows(sql.BIRTHS, births, wall)
    if others:
        db.run_rows(sql.PLANNED, others, wall)
    db.reach("apply:after_events")
    return rest


def birth_row(event: Event, change: Change, rid: int) -> tuple[Any, ...]:
    """A row for `BIRTHS`: the first event of a run that has this number."""
    return event.ns, event.schedule_id, rid, event.run_id, *_said(event, change)


def _said(event: Event, change: Change) -> tuple[Any, ...]:
    return event.v, plain_text(event.actor), change.id, encode_data(event)


def plain_plan(db: Database, change: Change, rows: list[list[Any]], mark: int) -> tuple[Any, ...] | None:
    """The schedule's row, if the change says only how far it has come, and that this was all; its fires are added."""
    guard, schedule = change.guard, change.schedule
    if type(guard) is not ScheduleAt or schedule is None or schedule.id != guard.id or change.run is not None:
        return None
    if change.spans or change.bodies or change.gates or change.touches or change.releases:
        return None
    events = change.events
    if schedule.state == "finished":
        end = events[-1] if events else None
        if type(end) is not ScheduleFinished or schedule.next_at is not None or end.reason != schedule.reason:
            return None
        if (end.schedule_id, end.ns) != (guard.id, schedule.ns) or guard.touched:
            return None
        events = events[:-1]
    if schedule.revision != guard.revision or len(change.runs) != len(events):
        return None
    if schedule.n != guard.n + len(change.events) - len(events):
        return None
    for run, event in zip(change.runs, events, strict=True):
        if type(event) is not RunScheduled or event.run_id != run.id or run.state not in OPEN:
            return None
        if not event.schedule_id == run.schedule_id == guard.id or event.ns != run.ns:
            return None
        if event.epoch is not None or event.attempt is not None or event.owner is not None:
            return None
        rows.append(run_row(run, 1, None, mark, None))
    seen = (db.sids.get(guard.id), guard.id, guard.revision, guard.cursor, guard.n)
    if schedule.state == "finished":
        return (*seen, schedule.cursor, schedule.fired, schedule.anchor, plain_text(schedule.reason), schedule.until)
    now = (schedule.cursor, schedule.next_at, schedule.fired)
    return (*seen, *now, schedule.state, schedule.anchor, schedule.reason, schedule.until)
