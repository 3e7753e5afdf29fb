"""Fast path of `apply` for plans: changes that advance or finish a schedule and insert the runs of its fires."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from mainspring.backends.change_batches import IndexedChanges
from mainspring.backends.sqlite import apply_sql as sql
from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.fast.insert_runs import insert_new_rows
from mainspring.backends.sqlite.rows import is_new_row, pack, replace_nul, run_row
from mainspring.model.change import Change, Result, ScheduleAt
from mainspring.model.event_codec import encode_data
from mainspring.model.events import Event, RunEvent
from mainspring.model.instant import Ms

_ids = msgspec.json.Decoder(list[str])


class Plans(NamedTuple):
    """The rows to write for a batch of plans, and the ids of the schedules that the plans advance or finish."""

    #: New runs, as rows of `run_row`.
    runs: list[list[Any]]
    #: Schedules that advance, as rows for `MOVE_SCHEDULES`.
    moved: list[tuple[Any, ...]]
    #: Schedules that finish, as rows for `FINISH_SCHEDULES`.
    finished: list[tuple[Any, ...]]
    ids: set[str]


def advance_schedules(
    db: Database, changes: IndexedChanges, results: list[Result], mark: int, wall: Ms
) -> IndexedChanges:
    """Write a batch of plans and set their `results`; return the changes that are not written.

    A plan advances or finishes a schedule and inserts the runs of its fires. All changes are returned if one is not a
    plan, if two are of one schedule, if one finishes a touched schedule, or if a run exists already or has more values
    than a new run. Otherwise those plans are returned whose guard does not hold, whose schedule is touched, or which
    change columns that this path does not write. `mark`: the number for the column `mark` of the rows. `wall`: the
    present time.
    """
    plans = match_plans(db, changes, mark)
    before_first = None if plans is None else insert_new_rows(db, plans.runs, mark, wall)
    if plans is None or before_first is None:
        return changes
    ids = _move_schedules(db, plans, mark, wall)
    db.reach("apply:after_guard")
    started: list[tuple[Any, ...]] = []
    mixed: list[tuple[Any, ...]] = []
    rest: IndexedChanges = []
    for index, change in changes:
        guard = change.guard
        assert isinstance(guard, ScheduleAt)
        rid, before_first = before_first, before_first + len(change.runs)
        if guard.id not in ids:  # `apply` finds out why, by its general statements
            db.run(sql.DELETE_NEW_RUNS, rid, before_first, mark)
            rest.append((index, change))
            continue
        n = guard.n
        for event in change.events:
            if not plans.finished:
                rid += 1
                started.append(scheduled_event_row(event, change, rid))
            elif isinstance(event, RunEvent):
                rid += 1
                mixed.append((event.ns, guard.id, rid, event.run_id, 1, "RunScheduled", *_event_values(event, change)))
            else:
                n += 1
                mixed.append((event.ns, guard.id, None, None, n, "ScheduleFinished", *_event_values(event, change)))
        results[index] = Result("accepted", n)
    db.reach("apply:after_rows")
    if started:
        db.run_rows(sql.INSERT_SCHEDULED_EVENTS, started, wall)
    if mixed:
        db.run_rows(sql.INSERT_PLAN_EVENTS, mixed, wall)
    db.reach("apply:after_events")
    return rest


def match_plans(db: Database, changes: IndexedChanges, mark: int) -> Plans | None:
    """Return the rows of the batch if all changes are plain plans, each of a different schedule; else None.

    A plain plan is a change of the kind "plan" whose runs have only the values of new runs. A plan that finishes a
    touched schedule is not plain. The file is not read. `mark`: the number for the column `mark` of the runs.
    """
    plans = Plans([], [], [], set())
    for _, change in changes:
        row = _read_plan(db, change, plans.runs, mark)
        if row is None:
            return None
        guard, schedule = change.guard, change.schedule
        assert guard is not None
        assert schedule is not None
        (plans.finished if schedule.state == "finished" else plans.moved).append(row)
        plans.ids.add(guard.id)
    return plans if len(plans.ids) == len(changes) and all(map(is_new_row, plans.runs)) else None


def _move_schedules(db: Database, plans: Plans, mark: int, wall: Ms) -> set[str]:
    """Update the schedules of the plans; return the ids of those that were updated.

    A schedule is not updated if its plan's guard does not hold, if it is touched, or if the plan changes columns that
    the statements do not write. `mark`: the number for the column `mark` of the schedules. `wall`: the present time.
    """
    written = db.run_rows(sql.MOVE_SCHEDULES, plans.moved, mark) if plans.moved else 0
    if plans.finished:
        written += db.run_rows(sql.FINISH_SCHEDULES, plans.finished, mark, wall)
    db.moved_schedules += written
    if written == len(plans.ids):
        return plans.ids
    return set(_ids.decode(db.value(sql.MOVED_SCHEDULE_IDS, pack(list(plans.ids)), mark)))


def scheduled_event_row(event: Event, change: Change, rid: int) -> tuple[Any, ...]:
    """Return the values of a run's first event for `INSERT_SCHEDULED_EVENTS`. `rid`: the row number of the run."""
    return event.ns, event.schedule_id, rid, event.run_id, *_event_values(event, change)


def _event_values(event: Event, change: Change) -> tuple[Any, ...]:
    """Return the event's values for the columns v, actor, change (id of the change) and data, in this order."""
    return event.v, replace_nul(event.actor), change.id, encode_data(event)


def _read_plan(db: Database, change: Change, rows: list[list[Any]], mark: int) -> tuple[Any, ...] | None:
    """Return the schedule's row for `MOVE_SCHEDULES` or `FINISH_SCHEDULES` if the change is a plan, else None.

    Also return None if the plan finishes a touched schedule: this fast path cannot write such a plan. The rows of the
    plan's runs are added to `rows`. `mark`: the number for the column `mark` of these runs.
    """
    guard, schedule = change.guard, change.schedule
    if change.kind != "plan" or not isinstance(guard, ScheduleAt) or schedule is None:
        return None
    if schedule.state == "finished" and guard.touched:
        return None
    rows += [run_row(run, 1, None, mark, None) for run in change.runs]
    seen = (db.schedule_row_ids.get(guard.id), guard.id, guard.revision, guard.cursor, guard.n)
    if schedule.state == "finished":
        return (*seen, schedule.cursor, schedule.fired, schedule.anchor, replace_nul(schedule.reason), schedule.until)
    now = (schedule.cursor, schedule.next_at, schedule.fired)
    return (*seen, *now, schedule.state, schedule.anchor, schedule.reason, schedule.until)
