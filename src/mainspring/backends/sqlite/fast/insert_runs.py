"""Fast path of `apply` for new runs. Their row numbers are consecutive, so no query for them is needed."""

from __future__ import annotations

from typing import Any

from mainspring.backends.change_batches import IndexedChanges
from mainspring.backends.sqlite import apply_sql as sql
from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.gates import put_gates
from mainspring.backends.sqlite.rows import (
    INSERT_NEW_RUNS,
    insert_run_statement,
    is_new_row,
    new_run_rows,
    pack,
    replace_nul,
    run_row,
)
from mainspring.model.change import Change, Result, RunAbsent
from mainspring.model.event_codec import BulkEventEncoder, encode_data
from mainspring.model.events import RunScheduled
from mainspring.model.instant import Ms
from mainspring.model.run import Run

#: A new run, its first event, and the id of its change.
NewRun = tuple[Run, RunScheduled, str]


def insert_runs(db: Database, changes: IndexedChanges, results: list[Result], mark: int, wall: Ms) -> bool:
    """Write the changes, set their `results` and return True if all of them only insert runs that do not exist yet.

    Else write nothing and return False. Also return False if a run is in the batch twice or has more values than a new
    run, or if a guard names a unique key: the general statements then look for an open run with this key. `mark`: the
    number for the column `mark` of the runs. `wall`: the present time.
    """
    found: list[NewRun] = []
    for _, change in changes:
        if not _collect_new_runs(change, found):
            return False
    if len({run.id for run, _, _ in found}) < len(found):
        return False
    rows = new_run_rows([run for run, _, _ in found], mark)
    if rows is None:
        return False
    before_first = insert_new_rows(db, rows, mark, wall)
    if before_first is None:
        return False
    db.reach("apply:after_guard")
    _write_bodies_and_gates(db, changes)
    db.reach("apply:after_rows")
    _append_events(db, found, before_first, wall)
    db.reach("apply:after_events")
    for index, change in changes:
        results[index] = Result("accepted", 1 if change.guard is not None else 0)
    return True


def _write_bodies_and_gates(db: Database, changes: IndexedChanges) -> None:
    """Write the payloads and gates that the changes bring."""
    bodies = {body.id: body.data for _, change in changes for body in change.bodies}
    if bodies:
        db.run(sql.INSERT_BODIES, pack(list(bodies.items())))
    gates = [(g.name, g.max, g.held, g.closed_until) for _, change in changes for g in change.gates]
    if gates:
        put_gates(db, gates)


def _append_events(db: Database, found: list[NewRun], number: int, wall: Ms) -> None:
    """Append the first event of each run in `found`. `wall`: the present time.

    The runs have consecutive row numbers, of which the first is `number` + 1.
    """
    event_rows = []
    data = BulkEventEncoder()
    for run, event, change_id in found:
        number += 1
        text = data.encode_next(event) if data.can_reuse(event) else data.encode_first(event)
        event_rows.append((run.ns, run.schedule_id, number, run.id, event.v, replace_nul(event.actor), change_id, text))
    db.run_rows(sql.INSERT_SCHEDULED_EVENTS, event_rows, wall)


def insert_new_rows(db: Database, rows: list[list[Any]], mark: int, wall: Ms) -> int | None:
    """Insert runs under consecutive row numbers; return the number before the first one's.

    If one of the runs exists already, insert none and return None. A run exists if its id or fire has a row, or if an
    open run has its unique key. `rows`: rows of new runs, as `run_row` returns them. `mark`: the number that the rows
    have in their column `mark`. `wall`: the present time.
    """
    count = db.run_rows(INSERT_NEW_RUNS, rows, wall)
    last: int = db.value("SELECT last_insert_rowid()") if count else 0
    if count < len(rows):
        db.run(sql.DELETE_NEW_RUNS, last - len(rows), last, mark)
        return None
    return last - count


def insert_run(db: Database, change: Change, mark: int, wall: Ms) -> Result | None:
    """Insert the one new run of a change by few statements, because a caller of `enqueue` waits; return the result.

    Return None and write nothing if the change does more, brings gates or guards a unique key, or if the run is stored
    already or has more values than a new run. `mark`: the number for the run's column `mark`. `wall`: the present time.
    """
    found: list[NewRun] = []
    if change.gates or not _collect_new_runs(change, found) or len(found) != 1:
        return None
    run, event, change_id = found[0]
    row = run_row(run, 1, None, mark, None)
    if not is_new_row(row):
        return None
    statement, values = insert_run_statement(row, wall)
    inserted = db.run(statement, *values)
    if inserted.rowcount != 1:
        return None
    db.reach("apply:after_guard")
    if change.bodies:
        db.run(sql.INSERT_BODIES, pack([(body.id, body.data) for body in change.bodies]))
    db.reach("apply:after_rows")
    columns = run.ns, run.schedule_id, inserted.lastrowid, run.id, event.v, replace_nul(event.actor), change_id
    db.run(sql.INSERT_SCHEDULED_EVENT, wall, *columns, encode_data(event))
    db.reach("apply:after_events")
    return Result("accepted", 1 if change.guard is not None else 0)


def _collect_new_runs(change: Change, found: list[NewRun]) -> bool:
    """If the change only inserts new runs, add these to `found` and return True; else return False.

    Also return False if the guard names a unique key: the general statements of `apply` then look for an open run with
    this key.
    """
    if change.kind != "new_runs":
        return False
    if isinstance(change.guard, RunAbsent) and change.guard.unique_key is not None:
        return False
    runs = change.runs or (change.run,)
    for run, event in zip(runs, change.events, strict=True):
        assert run is not None
        assert isinstance(event, RunScheduled)
        found.append((run, event, change.id))
    return True
