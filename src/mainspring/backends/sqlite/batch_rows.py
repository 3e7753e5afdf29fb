"""The rows of a batch, sorted into segments of independent changes, and by the statement that tests their guard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from mainspring.backends.change_batches import IndexedChanges, split_independent
from mainspring.backends.sqlite.apply_sql import schedule_values
from mainspring.backends.sqlite.rows import STATE_TEXT, replace_nul, run_row
from mainspring.model.change import Change, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.events import Event, FiresElided, RunEvent, ScheduleEvent
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, Run, State


class Segment:
    """Changes of one batch that do not depend on each other, sorted into lists of rows for different statements.

    The statements are those of `apply_sql`, if no other module is named below. Changes without a guard have no row here
    and are only listed by index. A change writes its own number, its *mark*, into the column `mark` of its rows. A
    guarded row that has this number afterwards was written, so the guard held. `first`: the mark of the batch's first
    change; the mark of the change with index i in the batch is `first` + i. `wall`: the present time.
    """

    def __init__(self, changes: IndexedChanges, first: int, wall: Ms) -> None:
        self.first = first
        self.wall = wall
        self.changes = changes
        #: Guarded by a lease: runs that end or wait again (`END_ATTEMPTS`), runs that stay running (`KEEP_RUNNING`).
        self.leaving: list[list[Any]] = []
        self.staying: list[list[Any]] = []
        #: Guarded by `n`: runs (`UPDATE_AT`), and their payloads (`UPDATE_BODIES`).
        self.ats: list[list[Any]] = []
        self.bodies: list[tuple[str, int, str | None]] = []
        #: Runs that must not exist yet (`insert_runs_statement` in `rows`).
        self.absent: list[list[Any]] = []
        #: Schedules guarded by revision, cursor and `n` (`UPDATE_SCHEDULES`); (index in the batch, new `n`) of each.
        self.schedules: list[list[Any]] = []
        self.moved: list[tuple[int, int]] = []
        #: True if a change may write the definition of a schedule. A plan never does.
        self.redefines = False
        #: Schedules that must not exist yet (`INSERT_SCHEDULES`).
        self.new_schedules: list[list[Any]] = []
        #: The indexes in the batch of the changes without a guard.
        self.unguarded: list[int] = []
        for index, change in changes:
            self._sort(index, change, first + index)

    def _sort(self, index: int, change: Change, mark: int) -> None:
        """Build the row of the change with this index in the batch, and add it to the list for its kind of guard.

        `mark`: the number for the row's column `mark`.
        """
        guard = change.guard
        if isinstance(guard, RunLease):
            row = _run_values(change, guard.id, guard.epoch, mark)
            if _run_of(change.run).state is State.RUNNING:
                self.staying.append(row)
            else:
                row.append(self.wall if _run_of(change.run).state in ENDED else None)
                self.leaving.append(row)
        elif isinstance(guard, RunAt):
            run = _run_of(change.run)
            row = _run_values(change, guard.id, guard.n, mark)
            row += (run.cancel, run.ns, run.unique_key)
            self.ats.append(row)
            self.bodies.append((guard.id, mark, run.body))
        elif isinstance(guard, RunAbsent):
            run = _run_of(change.run)
            event_count = _count_events(change.events, run.id)
            self.absent.append(new_run_row(run, event_count, self.wall, mark, guard.unique_key))
        elif isinstance(guard, ScheduleAt):
            row = _schedule_row(change, mark)
            self.schedules.append([*row, guard.revision, guard.cursor, guard.n, guard.touched, guard.old_name])
            self.moved.append((index, guard.n + row[2]))
            self.redefines = self.redefines or not all(_is_plan_event(event, guard.id) for event in change.events)
        elif isinstance(guard, ScheduleAbsent):
            self.new_schedules.append([*_schedule_row(change, mark), guard.id, guard.ns, guard.name])
        else:
            self.unguarded.append(index)


def split_segments(changes: IndexedChanges, first: int, wall: Ms) -> Iterable[Segment]:
    """Yield the changes, each with its index in a batch, in consecutive segments, nearly always one segment.

    The changes of one segment do not depend on each other. `first`: the number for the column `mark` of the batch's
    first change. `wall`: the present time.
    """
    for part in split_independent(changes):
        yield Segment(part, first, wall)


def new_run_row(run: Run, event_count: int, wall: Ms, mark: int, guard_key: str | None) -> list[Any]:
    """Return a row for `insert_runs_statement`.

    `event_count`: how many of the change's events are of the run; this becomes its `n`. `wall`: the present time,
    written as the end of a run that has ended. `mark`: the number for the run's column `mark`. `guard_key`: a unique
    key that no open run may have, or None.
    """
    return run_row(run, event_count, wall if run.state in ENDED else None, mark, guard_key)


def count_events_by_run(change: Change) -> Counter[str | None]:
    """Return run id → number of the change's events of this run."""
    return Counter(event.run_id for event in change.events if isinstance(event, RunEvent))


def _run_values(change: Change, run_id: str, guard: int, mark: int) -> list[Any]:
    """Return the values that rows of `END_ATTEMPTS`, `KEEP_RUNNING` and `UPDATE_AT` begin with.

    `guard`: the epoch or `n` that the run's row must have. `mark`: the number for the run's column `mark`.
    """
    run = _run_of(change.run)
    return [
        run_id,
        guard,
        mark,
        _count_events(change.events, run_id),
        STATE_TEXT[run.state],
        run.ready_at,
        run.failures,
        run.crashes,
        replace_nul(run.reason),
        replace_nul(run.result),
        replace_nul(run.error),
        run.began_at,
        run.ms,
        run.dead,
    ]


def _schedule_row(change: Change, mark: int) -> list[Any]:
    """Return the values that rows of `UPDATE_SCHEDULES` and `INSERT_SCHEDULES` begin with; the caller adds the guard's.

    `mark`: the number for the schedule's column `mark`.
    """
    schedule = change.schedule
    assert schedule is not None, "a guard on a schedule needs the schedule's values"
    event_count = sum(isinstance(e, ScheduleEvent) and e.schedule_id == schedule.id for e in change.events)
    return schedule_values(schedule, mark, event_count)


def _is_plan_event(event: Event, schedule_id: str) -> bool:
    """Return True if the event belongs to this schedule and is of a type that never changes the definition."""
    return event.schedule_id == schedule_id and isinstance(event, RunEvent | FiresElided)


def _run_of(run: Run | None) -> Run:
    assert run is not None, "a guard on a run needs the run's values"
    return run


def _count_events(events: tuple[Event, ...], run_id: str) -> int:
    """Return how many of the events are of this run."""
    count = 0
    for event in events:
        if event.run_id == run_id and isinstance(event, RunEvent):
            count += 1
    return count
