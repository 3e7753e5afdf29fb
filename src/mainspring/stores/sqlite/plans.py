"""What planners write, by the shortest way: schedules move on and their fires are born."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.model.change import Change, Result, ScheduleAt
from mainspring.model.events import RunScheduled, encode_data
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
    ids: set[str] = set()
    for _, change in changes:
        row = _plain_plan(change, rows, mark)
        if row is None:
            return changes
        moved.append(row)
        ids.add(row[0])
    if len(ids) < len(changes) or not all(map(is_fresh, rows)):
        return changes
    count = db.run_rows(INSERT_FRESH, rows, wall)
    last: int = db.value("SELECT last_insert_rowid()") if count else 0
    if count < len(rows):  # one exists already: the long way says which
        db.run(sql.UNBORN, last - len(rows), last, mark)
        return changes
    first = last - count
    rest: Indexed = []
    if db.run_rows(sql.MOVE_SCHEDULES, moved, mark) < len(moved):
        ids = set(_ids.decode(db.value(sql.MOVED_BY, pack(list(ids)), mark)))
    db.reach("apply:after_guard")
    events = []
    for (index, change), (schedule_id, *_) in zip(changes, moved, strict=True):
        before, first = first, first + len(change.runs)
        if schedule_id not in ids:  # it is looked at again, to be told why
            db.run(sql.UNBORN, before, first, mark)
            rest.append((index, change))
            continue
        for event in change.events:
            before += 1
            actor = plain_text(event.actor)
            row = (event.ns, schedule_id, before, event.run_id, event.v, actor, change.id, encode_data(event))
            events.append(row)
        assert isinstance(change.guard, ScheduleAt)
        results[index] = Result("accepted", change.guard.n)
    db.reach("apply:after_rows")
    if events:
        db.run_rows(sql.BIRTHS, events, wall)
    db.reach("apply:after_events")
    return rest


def _plain_plan(change: Change, rows: list[list[Any]], mark: int) -> tuple[Any, ...] | None:
    """The schedule's row, if the change says only how far it has come; its fires are added to the rows."""
    guard, schedule = change.guard, change.schedule
    if type(guard) is not ScheduleAt or schedule is None or schedule.id != guard.id or change.run is not None:
        return None
    if change.spans or change.bodies or change.gates or change.touches or change.releases:
        return None
    if (schedule.revision, schedule.n) != (guard.revision, guard.n) or len(change.runs) != len(change.events):
        return None
    for run, event in zip(change.runs, change.events, strict=True):
        if type(event) is not RunScheduled or event.run_id != run.id or run.state not in OPEN:
            return None
        if not event.schedule_id == run.schedule_id == guard.id or event.ns != run.ns:
            return None
        if event.epoch is not None or event.attempt is not None or event.owner is not None:
            return None
        rows.append(run_row(run, 1, None, mark, None))
    now = (schedule.cursor, schedule.next_at, schedule.fired)
    same = (schedule.state, schedule.anchor, schedule.reason, schedule.until)
    return (guard.id, guard.revision, guard.cursor, guard.n, *now, *same)
