"""New runs by the shortest way: when a batch brings nothing else, their numbers are known without reading them back."""

from __future__ import annotations

from typing import Any

from mainspring.model.change import Change, Result, RunAbsent
from mainspring.model.events import RunScheduled, encode_data
from mainspring.model.instant import Ms
from mainspring.model.run import OPEN, Run
from mainspring.stores.batch import Indexed
from mainspring.stores.sqlite import apply_sql as sql
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.rows import INSERT_FRESH, INSERT_ONE, is_fresh, pack, plain_text, run_row

Birth = tuple[Run, RunScheduled, str]


def births(db: Database, changes: Indexed, results: list[Result], mark: int, wall: Ms) -> bool:
    """Write the batch if it is nothing but births, as `apply` would; False leaves everything as it was."""
    found: list[Birth] = []
    for _, change in changes:
        if not _plain_births(change, found):
            return False
    if len({run.id for run, _, _ in found}) < len(found):
        return False
    rows = [run_row(run, 1, None, mark, None) for run, _, _ in found]
    if not all(map(is_fresh, rows)):
        return False
    count, last = _insert(db, rows, wall)
    if count < len(rows):  # one exists already, by id, fire or unique key: the long way says which
        db.run(sql.UNBORN, last - len(rows), last, mark)
        return False
    db.reach("apply:after_guard")
    bodies = {body.id: body.data for _, change in changes for body in change.bodies}
    if bodies:
        db.run(sql.INSERT_BODIES, pack(list(bodies.items())))
    gates = [(g.name, g.max, g.held, g.closed_until) for _, change in changes for g in change.gates]
    if gates:
        db.run(sql.UPSERT_GATES, pack(gates))
    db.reach("apply:after_rows")
    number = last - count
    events = []
    for run, event, change_id in found:
        number += 1
        actor = plain_text(event.actor)
        events.append((run.ns, run.schedule_id, number, run.id, event.v, actor, change_id, encode_data(event)))
    if len(events) == 1:
        db.run(sql.BIRTH, wall, *events[0])
    else:
        db.run_rows(sql.BIRTHS, events, wall)
    db.reach("apply:after_events")
    for index, change in changes:
        results[index] = Result("accepted", 1 if change.guard is not None else 0)
    return True


def _insert(db: Database, rows: list[list[Any]], wall: Ms) -> tuple[int, int]:
    """How many are new, and the number of the last of them."""
    if len(rows) == 1:
        cursor = db.run(INSERT_ONE, wall, *rows[0][:-1])
        return cursor.rowcount, cursor.lastrowid or 0
    count = db.run_rows(INSERT_FRESH, rows, wall)
    return count, db.value("SELECT last_insert_rowid()") if count else 0


def _plain_births(change: Change, found: list[Birth]) -> bool:
    """Add the births of a change that brings nothing else."""
    guard, runs, events = change.guard, change.runs, change.events
    if change.spans or change.touches or change.releases or change.schedule is not None:
        return False
    if type(guard) is RunAbsent:
        if change.run is None or runs or guard.unique_key is not None or guard.id != change.run.id:
            return False
        runs = (change.run,)
    elif guard is not None or change.run is not None or not runs:
        return False
    if len(runs) != len(events):
        return False
    for run, event in zip(runs, events, strict=True):
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
