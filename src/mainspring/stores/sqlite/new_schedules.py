"""New schedules by the shortest way: a batch of nothing else is bound as it is, what its rows share only once."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
from msgspec import Raw

from mainspring.model.change import Change, Result, ScheduleAbsent
from mainspring.model.events import ScheduleCreated, encode_data
from mainspring.model.instant import Ms
from mainspring.stores.batch import Indexed
from mainspring.stores.sqlite import apply_sql as sql
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.gates import put_gates
from mainspring.stores.sqlite.rows import pack, plain_text

_ACCEPTED = Result("accepted", 1)
_encoder = msgspec.json.Encoder()
_shared_values = attrgetter(*sql.SHARED_VALUES)
_first, _second = itemgetter(0), itemgetter(1)


def new_schedules(db: Database, changes: Indexed, results: list[Result], mark: int, wall: Ms) -> bool:
    """Write the batch if it is nothing but new schedules, as `apply` would; False leaves everything as it was."""
    rows: list[tuple[Any, Any]] = []
    events: list[tuple[Any, Any]] = []
    for _, change in changes:
        event = _plain_creation(change)
        s = change.schedule
        if event is None or s is None:
            return False
        spec = _encoder.encode(s.spec)
        rows.append((_shared_values(s), (s.id, s.name, s.digest, spec.decode(), s.spec.body, s.next_at)))
        data = _data(event, spec) if event.spec is s.spec else encode_data(event)
        events.append(((event.ns, event.v, event.actor), (s.id, change.id, data)))
    before: int = db.value("SELECT ifnull(max(sid), 0) FROM schedule")
    written = 0
    for shared, group in groupby(rows, _first):
        written += db.run_rows(sql.INSERT_BOUND_SCHEDULES, list(map(_second, group)), wall, mark, *shared)
    if written < len(rows):  # one exists, or is there twice: the long way says which
        db.run("DELETE FROM schedule WHERE sid > ?1", before)
        return False
    db.reach("apply:after_guard")
    _write_beside(db, changes)
    db.reach("apply:after_rows")
    for shared, group in groupby(events, _first):
        db.run_rows(sql.CREATIONS, list(map(_second, group)), wall, *shared)
    db.reach("apply:after_events")
    for index, _ in changes:
        results[index] = _ACCEPTED
    return True


def _write_beside(db: Database, changes: Indexed) -> None:
    """The schedules' payloads and gates."""
    bodies: dict[str, str] = {}
    gates: dict[str, tuple[int, int, Ms]] = {}
    for _, change in changes:
        for body in change.bodies:
            bodies[body.id] = body.data
        for gate in change.gates:
            gates[gate.name] = gate.max, gate.held, gate.closed_until
    if bodies:
        db.run(sql.INSERT_BODIES, pack(list(bodies.items())))
    if any(held for _, held, _ in gates.values()):
        put_gates(db, [(name, *values) for name, values in gates.items()])
        return
    for (most, _, closed_until), group in groupby(gates.items(), _second):
        db.run_rows(sql.UPSERT_BOUND_GATES, [(plain_text(name),) for name, _ in group], most, closed_until)


def _data(event: ScheduleCreated, spec: bytes) -> str | None:
    """`encode_data` with a spec that is encoded already; most schedules leave the same fields at their defaults."""
    usual = event.revision == 1 and event.origin == "api" and not event.app and not event.version
    if not usual or event.next_at is None or not event.by or not event.digest:
        return encode_data(event)
    data = {
        "name": event.name,
        "spec": Raw(spec),
        "anchor": event.anchor,
        "cursor": event.cursor,
        "next_at": event.next_at,
        "by": event.by,
        "digest": event.digest,
    }
    return _encoder.encode(data).decode()


def _plain_creation(change: Change) -> ScheduleCreated | None:
    """The event of a change that says nothing but that a schedule is new."""
    guard, s = change.guard, change.schedule
    if type(guard) is not ScheduleAbsent or s is None or len(change.events) != 1:
        return None
    if change.run is not None or change.runs or change.spans or change.touches or change.releases:
        return None
    event = change.events[0]
    if type(event) is not ScheduleCreated or event.epoch is not None or event.owner is not None:
        return None
    same = (
        guard.id == s.id == event.schedule_id
        and guard.ns == s.ns == event.ns
        and guard.name == s.name == event.name
        and event.run_id is None
    )
    texts = f"{s.name}{s.owner}{s.app}{s.version}{s.reason}{event.actor}"
    return event if same and "\0" not in texts else None
