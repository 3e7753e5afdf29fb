"""New schedules by the shortest way: a batch of nothing else is bound as it is, each row with its one event."""

from __future__ import annotations

from mainspring.model.change import Change, Result, ScheduleAbsent
from mainspring.model.events import ScheduleCreated, encode_data
from mainspring.model.instant import Ms
from mainspring.stores.batch import Indexed
from mainspring.stores.sqlite import apply_sql as sql
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.rows import pack


def new_schedules(db: Database, changes: Indexed, results: list[Result], mark: int, wall: Ms) -> bool:
    """Write the batch if it is nothing but new schedules, as `apply` would; False leaves everything as it was."""
    names: set[tuple[str, str]] = set()
    for _, change in changes:
        name = _plain_creation(change)
        if name is None or name in names:
            return False
        names.add(name)
    rows = []
    for _, change in changes:
        assert change.schedule is not None
        rows.append(sql.schedule_values(change.schedule, mark, 1))
    before: int = db.value("SELECT ifnull(max(sid), 0) FROM schedule")
    if db.run_rows(sql.INSERT_BOUND_SCHEDULES, rows, wall) < len(rows):  # one exists: the long way says which
        db.run("DELETE FROM schedule WHERE sid > ?1", before)
        return False
    db.reach("apply:after_guard")
    bodies = {body.id: body.data for _, change in changes for body in change.bodies}
    if bodies:
        db.run(sql.INSERT_BODIES, pack(list(bodies.items())))
    gates = {gate.name: (gate.name, gate.max, gate.held, gate.closed_until) for _, c in changes for gate in c.gates}
    if gates:
        db.run(sql.UPSERT_GATES, pack(list(gates.values())))
    db.reach("apply:after_rows")
    events = []
    for _, change in changes:
        event = change.events[0]
        events.append((event.ns, event.schedule_id, event.v, event.actor, change.id, encode_data(event)))
    db.run_rows(sql.CREATIONS, events, wall)
    db.reach("apply:after_events")
    for index, _ in changes:
        results[index] = Result("accepted", 1)
    return True


def _plain_creation(change: Change) -> tuple[str, str] | None:
    """Namespace and name if the change says nothing but that a schedule is new."""
    guard, schedule = change.guard, change.schedule
    if type(guard) is not ScheduleAbsent or schedule is None or len(change.events) != 1:
        return None
    if change.run is not None or change.runs or change.spans or change.touches or change.releases:
        return None
    event = change.events[0]
    if type(event) is not ScheduleCreated or event.epoch is not None or event.owner is not None:
        return None
    same = (
        guard.id == schedule.id == event.schedule_id
        and guard.ns == schedule.ns == event.ns
        and guard.name == schedule.name == event.name
        and event.run_id is None
    )
    texts = (schedule.name, schedule.owner, schedule.app, schedule.version, schedule.reason, event.actor)
    if not same or any(text is not None and "\0" in text for text in texts):
        return None
    return schedule.ns, schedule.name
