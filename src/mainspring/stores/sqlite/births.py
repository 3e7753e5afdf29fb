"""New runs by the shortest way: when a batch brings nothing else, their numbers are known without reading them back."""

from __future__ import annotations

from mainspring.model.change import Change, Result, RunAbsent
from mainspring.model.events import BirthData, RunScheduled, encode_data
from mainspring.model.instant import Ms
from mainspring.model.run import OPEN, Run
from mainspring.stores.batch import Indexed
from mainspring.stores.sqlite import apply_sql as sql
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.gates import put_gates
from mainspring.stores.sqlite.rows import INSERT_FRESH, fresh_rows, insert_run, is_fresh, pack, plain_text, run_row

Birth = tuple[Run, RunScheduled, str]


def births(db: Database, changes: Indexed, results: list[Result], mark: int, wall: Ms) -> bool:
    """Write the batch if it is nothing but births, as `apply` would; False leaves everything as it was."""
    found: list[Birth] = []
    for _, change in changes:
        if not _plain_births(change, found):
            return False
    if len({run.id for run, _, _ in found}) < len(found):
        return False
    rows = fresh_rows([run for run, _, _ in found], mark)
    if rows is None:
        return False
    count = db.run_rows(INSERT_FRESH, rows, wall)
    last: int = db.value("SELECT last_insert_rowid()") if count else 0
    if count < len(rows):  # one exists already, by id, fire or unique key: the long way says which
        db.run(sql.UNBORN, last - len(rows), last, mark)
        return False
    db.reach("apply:after_guard")
    bodies = {body.id: body.data for _, change in changes for body in change.bodies}
    if bodies:
        db.run(sql.INSERT_BODIES, pack(list(bodies.items())))
    gates = [(g.name, g.max, g.held, g.closed_until) for _, change in changes for g in change.gates]
    if gates:
        put_gates(db, gates)
    db.reach("apply:after_rows")
    number = last - count
    said = []
    data = BirthData()
    for run, event, change_id in found:
        number += 1
        text = data.next(event) if data.follows(event) else data.first(event)
        said.append((run.ns, run.schedule_id, number, run.id, event.v, plain_text(event.actor), change_id, text))
    db.run_rows(sql.BIRTHS, said, wall)
    db.reach("apply:after_events")
    for index, change in changes:
        results[index] = Result("accepted", 1 if change.guard is not None else 0)
    return True


def birth(db: Database, change: Change, mark: int, wall: Ms) -> Result | None:
    """The same for a single one: what most callers wait for."""
    found: list[Birth] = []
    if change.gates or not _plain_births(change, found) or len(found) != 1:
        return None
    run, event, change_id = found[0]
    row = run_row(run, 1, None, mark, None)
    if not is_fresh(row):
        return None
    statement, values = insert_run(row, wall)
    inserted = db.run(statement, *values)
    if inserted.rowcount != 1:
        return None
    db.reach("apply:after_guard")
    if change.bodies:
        db.run(sql.INSERT_BODIES, pack([(body.id, body.data) for body in change.bodies]))
    db.reach("apply:after_rows")
    about = run.ns, run.schedule_id, inserted.lastrowid, run.id, event.v, plain_text(event.actor), change_id
    db.run(sql.BIRTH, wall, *about, encode_data(event))
    db.reach("apply:after_events")
    return Result("accepted", 1 if change.guard is not None else 0)


def _plain_births(change: Change, found: list[Birth]) -> bool:
    """Add the births of a change that brings nothing else."""
    guard, runs = change.guard, change.runs
    if change.spans or change.touches or change.releases or change.schedule is not None:
        return False
    if type(guard) is RunAbsent:
        if change.run is None or runs or guard.unique_key is not None or guard.id != change.run.id:
            return False
        runs = (change.run,)
    elif guard is not None or change.run is not None or not runs:
        return False
    if len(runs) != len(change.events):
        return False
    for run, event in zip(runs, change.events, strict=True):
        if type(event) is not RunScheduled or event.run_id != run.id or run.state not in OPEN:
            return False
        if (
            event.ns != run.ns
            or event.schedule_id != run.schedule_id
            or event.epoch is not None
            or event.owner is not None
        ):
            return False
        found.append((run, event, change.id))
    return True
