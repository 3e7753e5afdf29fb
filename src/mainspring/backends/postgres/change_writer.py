"""Writing changes of any kind: their guarded rows, their other rows and counts, and their events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from mainspring.backends.change_batches import IndexedChanges
from mainspring.backends.postgres import apply_sql as sql
from mainspring.backends.postgres.database import Database, Session
from mainspring.backends.postgres.refusals import explain_refusals
from mainspring.backends.postgres.rows import (
    EVENT_COLUMNS,
    INSERT_EVENTS,
    INSERT_RUNS,
    RUN_COLUMNS,
    STATE_TEXT,
    body_rows,
    column_arrays,
    event_row,
    run_row,
    schedule_values,
    storable_text,
)
from mainspring.model.change import Change, Result, RunAbsent, RunAt, RunLease, ScheduleAbsent, ScheduleAt
from mainspring.model.events import Event, RunEvent, ScheduleEvent
from mainspring.model.instant import Ms
from mainspring.model.run import ENDED, Run


class _GuardedRows:
    """Rows to write for the runs and schedules that changes guard, in one list for each statement that writes them."""

    def __init__(self, wall: Ms) -> None:
        """Begin without rows. `wall`: the transaction's instant, stamped on new runs."""
        self._wall = wall
        self.moved_runs: list[list[Any]] = []
        self.new_runs: list[list[Any]] = []
        self.moved_schedules: list[list[Any]] = []
        self.new_schedules: list[list[Any]] = []
        #: By id of a run or schedule: the index of the change that guards its absence and inserts it.
        self.inserted_by: dict[str, int] = {}

    def add(self, index: int, change: Change) -> bool:
        """Add a row with the new values of the run or schedule that the change guards, and return True.

        If the change has no guard, add nothing and return False. `index`: the index of the change in the batch.
        """
        guard = change.guard
        if isinstance(guard, RunLease | RunAt):
            self.moved_runs.append(_moved_run_row(index, change, guard))
        elif isinstance(guard, RunAbsent):
            run = change.run
            assert run is not None, "a guard on a run needs the run's values"
            self.inserted_by[run.id] = index
            self.new_runs.append(_new_run_row(run, _count_run_events(change.events, run.id), self._wall))
        elif isinstance(guard, ScheduleAt):
            self.moved_schedules.append(_moved_schedule_row(index, change, guard))
        elif isinstance(guard, ScheduleAbsent):
            schedule = change.schedule
            assert schedule is not None, "a guard on a schedule needs the schedule's values"
            self.inserted_by[schedule.id] = index
            count = _count_schedule_events(change, schedule.id)
            self.new_schedules.append([schedule.id, count, *schedule_values(schedule)])
        return guard is not None


class ChangeWriter:
    """Writes changes that do not depend on each other, inside one transaction, and sets their results."""

    def __init__(self, db: Database, session: Session, wall: Ms, results: list[Result]) -> None:
        """Begin without accepted changes. `wall`: the transaction's instant, stamped on rows and events.

        `results`: a result for each change of the whole batch, by index. `write` sets them.
        """
        self._db = db
        self._session = session
        self._wall = wall
        self._results = results
        #: By index in the batch: the changes whose guard held, each with the number of the guarded row's last event
        #: after the change, 0 for a change without a guard.
        self._accepted: dict[int, int] = {}

    async def write(self, part: IndexedChanges) -> None:
        """Write each change whose guard holds or that has no guard, and set the results of all changes of `part`.

        A change whose guard does not hold writes nothing. Its result is `repeated` if the change is stored already,
        else `refused`. `part`: changes that do not depend on each other, each with its index in the batch.
        """
        await self._check_guards(part)
        self._db.reach("apply:after_guard")
        holding = [(index, change) for index, change in part if index in self._accepted]
        await self._insert_bodies_and_gates(holding)
        inserted = await self._insert_runs(holding)
        await self._insert_spans(holding)
        await self._count_touches_and_releases(holding)
        self._db.reach("apply:after_rows")
        await self._append_events(holding, inserted)
        self._db.reach("apply:after_events")
        for index, change in holding:
            n = 0 if isinstance(change.guard, RunLease) else self._accepted[index]
            self._results[index] = Result("accepted", n)
        if len(holding) < len(part):
            refused = [(index, change) for index, change in part if index not in self._accepted]
            await explain_refusals(self._session, refused, self._results)

    async def _check_guards(self, part: IndexedChanges) -> None:
        """Write the guarded rows; record as accepted each change whose row was written, or that has no guard.

        `part`: changes that do not depend on each other, each with its index in the batch.
        """
        rows = _GuardedRows(self._wall)
        for index, change in part:
            if not rows.add(index, change):
                self._accepted[index] = 0
        await self._move_guarded(sql.MOVE_RUNS, rows.moved_runs, len(sql.MOVE_COLUMNS))
        await self._move_guarded(sql.MOVE_SCHEDULES, rows.moved_schedules, len(sql.SCHEDULE_AT_COLUMNS))
        await self._insert_guarded(rows, dict(part))

    async def _move_guarded(self, statement: str, rows: list[list[Any]], width: int) -> None:
        """Update guarded rows by `statement`, and record the changes whose guard held as accepted.

        `rows`: values for the statement, whose second column is the id. `width`: the number of columns.
        """
        if rows:
            rows.sort(key=lambda row: row[1])  # rows are locked in the order of ids
            records = await self._session.fetch(statement, self._wall, *column_arrays(rows, width))
            self._accepted.update((record["idx"], record["n"]) for record in records)

    async def _insert_guarded(self, rows: _GuardedRows, changes: dict[int, Change]) -> None:
        """Insert the guarded schedules and runs that do not exist, and record their changes as accepted.

        `changes`: the changes that `rows` come from, by index in the batch.
        """
        session, accepted = self._session, self._accepted
        if rows.new_schedules:
            numbers = {row[0]: row[1] for row in rows.new_schedules}
            columns = column_arrays(rows.new_schedules, len(sql.NEW_SCHEDULE_COLUMNS))
            for record in await session.fetch(sql.INSERT_SCHEDULES, self._wall, *columns):
                accepted[rows.inserted_by[record["id"]]] = numbers[record["id"]]
        if rows.new_runs:
            for record in await session.fetch(INSERT_RUNS, *column_arrays(rows.new_runs, len(RUN_COLUMNS))):
                index = rows.inserted_by[record["id"]]
                accepted[index] = _count_run_events(changes[index].events, record["id"])

    async def _insert_bodies_and_gates(self, holding: IndexedChanges) -> None:
        """Insert the payloads and gates of the accepted changes (`holding`).

        A payload that exists is skipped. A gate that exists takes the new maximum.
        """
        bodies = body_rows(body for _, change in holding for body in change.bodies)
        if bodies:
            await self._session.fetch(sql.INSERT_BODIES, *column_arrays(bodies, 2))
        gates: dict[str, Any] = {}
        for _, change in holding:
            for gate in change.gates:  # a gate that several changes bring is inserted with the last maximum
                first = gates.get(gate.name)
                held, closed = (gate.held, gate.closed_until) if first is None else first[2:]
                gates[gate.name] = (gate.name, gate.max, held, closed)
        if gates:
            await self._session.fetch(sql.UPSERT_GATES, *column_arrays([gates[name] for name in sorted(gates)], 4))

    async def _insert_runs(self, holding: IndexedChanges) -> set[str]:
        """Insert the runs in `Change.runs` of the accepted changes (`holding`); skip a run that exists.

        Returns the ids of the inserted runs. These runs come in addition to the rows that the changes guard.
        """
        rows: list[list[Any]] = []
        for _, change in holding:
            if change.runs:
                counts = Counter(event.run_id for event in change.events if isinstance(event, RunEvent))
                rows += [_new_run_row(run, counts[run.id], self._wall) for run in change.runs]
        if not rows:
            return set()
        return {row["id"] for row in await self._session.fetch(INSERT_RUNS, *column_arrays(rows, len(RUN_COLUMNS)))}

    async def _insert_spans(self, holding: IndexedChanges) -> None:
        cuts = [
            (change.schedule.id, change.cut_spans)
            for _, change in holding
            if change.cut_spans is not None and change.schedule is not None
        ]
        if cuts:
            await self._session.fetch(sql.CUT_SPANS, *column_arrays(cuts, len(sql.CUT_COLUMNS)))
        spans = [msgspec.structs.astuple(span) for _, change in holding for span in change.spans]
        if spans:
            await self._session.fetch(sql.INSERT_SPANS, *column_arrays(spans, len(sql.SPAN_COLUMNS)))

    async def _count_touches_and_releases(self, holding: IndexedChanges) -> None:
        """Write the touches and releases of the accepted changes (`holding`).

        Add the touches to the counts in the rows of schedules, and give the slots that the changes release back to
        gates.
        """
        touches: Counter[str] = Counter()
        releases: Counter[str] = Counter()
        for _, change in holding:
            touches.update(change.touches)
            releases.update(change.releases)
        if touches:
            await self._session.fetch(sql.TOUCH_SCHEDULES, *column_arrays(sorted(touches.items()), 2))
        if releases:
            await self._session.fetch(sql.RELEASE_GATES, *column_arrays(sorted(releases.items()), 2))

    async def _append_events(self, holding: IndexedChanges, inserted: set[str]) -> None:
        """Append the events of the accepted changes (`holding`) to the log, without those of runs that existed before.

        `inserted`: the ids of the runs that did not exist before.
        """
        rows = [
            event_row(event, change.id, n)
            for index, change in holding
            for event, n in self._numbered_events(index, change, inserted)
        ]
        if rows:
            await self._session.fetch(INSERT_EVENTS, self._wall, *column_arrays(rows, len(EVENT_COLUMNS)))

    def _numbered_events(self, index: int, change: Change, inserted: set[str]) -> Iterator[tuple[Event, int | None]]:
        """Yield the change's events, each with its number among the events of its run or schedule.

        The number is None for a note, an event that changes no row. Events of runs that the change should have
        inserted, but that existed before, are left out. `index`: the index of the change in the batch. `inserted`: the
        ids of the runs that did not exist before.
        """
        guarded = change.guard.id if change.guard is not None else None
        numbers: dict[str | None, int] = {}
        if guarded is not None and change.events:
            own = sum(_is_event_of(event, guarded) for event in change.events)
            numbers[guarded] = self._accepted[index] - own
        for event in change.events:
            n: int | None = None
            if isinstance(event, RunEvent):
                if event.run_id != guarded and event.run_id not in inserted:
                    continue
                n = numbers[event.run_id] = numbers.get(event.run_id, 0) + 1
            elif isinstance(event, ScheduleEvent):
                n = numbers[event.schedule_id] = numbers.get(event.schedule_id, 0) + 1
            yield event, n


def _new_run_row(run: Run, n: int, wall: Ms) -> list[Any]:
    """Return a row of INSERT_RUNS for a run created at the instant `wall`; `n`: the number of the run's last event."""
    return run_row(run, n, wall, wall if run.state in ENDED else None)


def _moved_run_row(index: int, change: Change, guard: RunLease | RunAt) -> list[Any]:
    """Return a row of MOVE_COLUMNS for a change that guards an existing run; `index`: its index in the batch."""
    run = change.run
    assert run is not None, "a guard on a run needs the run's values"
    leased = isinstance(guard, RunLease)
    return [
        index,
        guard.id,
        guard.epoch if isinstance(guard, RunLease) else None,
        guard.n if isinstance(guard, RunAt) else None,
        _count_run_events(change.events, guard.id),
        STATE_TEXT[run.state],
        run.ready_at,
        run.failures,
        run.crashes,
        storable_text(run.reason),
        storable_text(run.result),
        storable_text(run.error),
        run.began_at,
        run.ms,
        run.dead,
        None if leased else storable_text(run.cancel),
        None if leased else run.body,
        run.ns,
        run.unique_key,
    ]


def _moved_schedule_row(index: int, change: Change, guard: ScheduleAt) -> list[Any]:
    """Return a row of SCHEDULE_AT_COLUMNS for a change that guards a schedule; `index`: its index in the batch."""
    schedule = change.schedule
    assert schedule is not None, "a guard on a schedule needs the schedule's values"
    count = _count_schedule_events(change, guard.id)
    expected = (guard.revision, guard.cursor, guard.n, guard.touched, guard.old_name is not None)
    return [index, guard.id, count, *schedule_values(schedule), *expected]


def _count_schedule_events(change: Change, schedule_id: str) -> int:
    return sum(isinstance(event, ScheduleEvent) and event.schedule_id == schedule_id for event in change.events)


def _count_run_events(events: tuple[Event, ...], run_id: str) -> int:
    return sum(isinstance(event, RunEvent) and event.run_id == run_id for event in events)


def _is_event_of(event: Event, row_id: str) -> bool:
    return (isinstance(event, RunEvent) and event.run_id == row_id) or (
        isinstance(event, ScheduleEvent) and event.schedule_id == row_id
    )
