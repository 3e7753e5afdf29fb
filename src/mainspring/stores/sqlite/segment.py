"""Sorting a batch: changes that do not depend on each other, by the statement that guards them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from mainspring.model.change import Change, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.events import Event, FiresElided, RunEvent, ScheduleEvent
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, Run, State
from mainspring.stores.batch import Indexed, independent
from mainspring.stores.sqlite.apply_sql import schedule_values
from mainspring.stores.sqlite.rows import STATE_TEXT, plain_text, run_row


class Segment:
    """Rows for the guards' statements; within a segment their order makes no difference."""

    def __init__(self, changes: Indexed, first: int, wall: Ms) -> None:
        self.first = first
        self.wall = wall
        self.changes = changes
        self.leaving: list[list[Any]] = []
        self.staying: list[list[Any]] = []
        self.ats: list[list[Any]] = []
        self.bodies: list[tuple[str, int, str | None]] = []
        self.absent: list[list[Any]] = []
        self.schedules: list[list[Any]] = []
        #: What planning writes into a schedule says nothing of its definition.
        self.redefines = False
        self.moved: list[tuple[int, int]] = []
        self.new_schedules: list[list[Any]] = []
        self.unguarded: list[int] = []
        for index, change in changes:
            self._sort(index, change, first + index)

    def _sort(self, index: int, change: Change, mark: int) -> None:
        guard = change.guard
        if isinstance(guard, RunLease):
            row = _moved(change, guard.id, guard.epoch, mark)
            if _given(change.run).state is State.RUNNING:
                self.staying.append(row)
            else:
                row.append(self.wall if _given(change.run).state in ENDED else None)
                self.leaving.append(row)
        elif isinstance(guard, RunAt):
            run = _given(change.run)
            row = _moved(change, guard.id, guard.n, mark)
            row += (run.cancel, run.ns, run.unique_key)
            self.ats.append(row)
            self.bodies.append((guard.id, mark, run.body))
        elif isinstance(guard, RunAbsent):
            run = _given(change.run)
            moves = _moves(change.events, run.id)
            self.absent.append(new_run(run, moves, self.wall, mark, guard.unique_key))
        elif isinstance(guard, ScheduleAt):
            row = _schedule(change, mark)
            self.schedules.append([*row, guard.revision, guard.cursor, guard.n, guard.touched])
            self.moved.append((index, guard.n + row[2]))
            self.redefines = self.redefines or not all(_plans(event, guard.id) for event in change.events)
        elif isinstance(guard, ScheduleAbsent):
            self.new_schedules.append([*_schedule(change, mark), guard.id, guard.ns, guard.name])
        else:
            self.unguarded.append(index)


def segments(changes: Indexed, first: int, wall: Ms) -> Iterable[Segment]:
    """The batch, with each change's place in it, in as few segments as possible; nearly always it is one."""
    for part in independent(changes):
        yield Segment(part, first, wall)


def new_run(run: Run, moves: int, wall: Ms, mark: int, guard_key: str | None) -> list[Any]:
    """A row for `insert_runs`; its stream begins with so many of the change's own events."""
    return run_row(run, moves, wall if run.state in ENDED else None, mark, guard_key)


def moves_by_run(change: Change) -> Counter[str | None]:
    """How many moves each run's stream begins with."""
    return Counter(event.run_id for event in change.events if isinstance(event, RunEvent))


def _moved(change: Change, run_id: str, guard: int, mark: int) -> list[Any]:
    run = _given(change.run)
    return [
        run_id,
        guard,
        mark,
        _moves(change.events, run_id),
        STATE_TEXT[run.state],
        run.ready_at,
        run.failures,
        run.crashes,
        plain_text(run.reason),
        plain_text(run.result),
        plain_text(run.error),
        run.began_at,
        run.ms,
        run.dead,
    ]


def _schedule(change: Change, mark: int) -> list[Any]:
    schedule = change.schedule
    assert schedule is not None, "a guard on a schedule needs the schedule's values"
    moves = sum(isinstance(e, ScheduleEvent) and e.schedule_id == schedule.id for e in change.events)
    return schedule_values(schedule, mark, moves)


def _plans(event: Event, schedule_id: str) -> bool:
    return event.schedule_id == schedule_id and isinstance(event, RunEvent | FiresElided)


def _given(run: Run | None) -> Run:
    assert run is not None, "a guard on a run needs the run's values"
    return run


def _moves(events: tuple[Event, ...], run_id: str) -> int:
    count = 0
    for event in events:
        if event.run_id == run_id and isinstance(event, RunEvent):
            count += 1
    return count
