"""Fast path of `apply` for new schedules. Rows are bound value by value; values that rows share are bound only once."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
from msgspec import Raw

from mainspring.backends.change_batches import IndexedChanges
from mainspring.backends.sqlite import apply_sql as sql
from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.gates import put_gates
from mainspring.backends.sqlite.rows import pack, replace_nul
from mainspring.model.change import Change, Result
from mainspring.model.event_codec import encode_data
from mainspring.model.events import ScheduleCreated
from mainspring.model.instant import Ms

_ACCEPTED = Result("accepted", 1)
_encoder = msgspec.json.Encoder()
_shared_values = attrgetter(*sql.SHARED_VALUES)
_first, _second = itemgetter(0), itemgetter(1)


def insert_schedules(db: Database, changes: IndexedChanges, results: list[Result], mark: int, wall: Ms) -> bool:
    """Write the changes, set their `results` and return True if all of them only create schedules that do not exist.

    Else write nothing and return False. Also return False if a schedule is in the batch twice, or if one of its texts
    has U+0000, which only the general statements of `apply` replace. `mark`: the number for the column `mark` of the
    schedules. `wall`: the present time.
    """
    rows: list[tuple[Any, Any]] = []
    events: list[tuple[Any, Any]] = []
    for _, change in changes:
        event = _match_creation(change)
        s = change.schedule
        if event is None or s is None:
            return False
        spec = _encoder.encode(s.spec)
        rows.append((_shared_values(s), (s.id, s.name, s.digest, spec.decode(), s.spec.body, s.next_at)))
        data = _encode_data(event, spec) if event.spec is s.spec else encode_data(event)
        events.append(((event.ns, event.v, event.actor), (s.id, change.id, data)))
    before: int = db.value("SELECT ifnull(max(sid), 0) FROM schedule")
    written = 0
    for shared, group in groupby(rows, _first):
        written += db.run_rows(sql.INSERT_BOUND_SCHEDULES, list(map(_second, group)), wall, mark, *shared)
    if written < len(rows):  # one exists, or is in the batch twice: `apply` finds out which
        db.run("DELETE FROM schedule WHERE sid > ?1", before)
        return False
    db.reach("apply:after_guard")
    _write_bodies_and_gates(db, changes)
    db.reach("apply:after_rows")
    for shared, group in groupby(events, _first):
        db.run_rows(sql.INSERT_CREATED_EVENTS, list(map(_second, group)), wall, *shared)
    db.reach("apply:after_events")
    for index, _ in changes:
        results[index] = _ACCEPTED
    return True


def _write_bodies_and_gates(db: Database, changes: IndexedChanges) -> None:
    """Write the payloads and gates that the changes bring."""
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
        db.run_rows(sql.UPSERT_BOUND_GATES, [(replace_nul(name),) for name, _ in group], most, closed_until)


def _encode_data(event: ScheduleCreated, spec: bytes) -> str | None:
    """Return the event's data as JSON, None if it has none. `spec`: the event's spec as JSON.

    The result is that of `encode_data`, but for usual events it is built faster.
    """
    is_usual = event.revision == 1 and event.origin == "api" and not event.app and not event.version
    if not is_usual or event.next_at is None or not event.by or not event.digest:
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


def _match_creation(change: Change) -> ScheduleCreated | None:
    """Return the event of a change that only creates a schedule. Return None for other changes.

    Also return None if a text of the schedule or event has U+0000, which this fast path does not replace.
    """
    event, s = change.events[0] if change.events else None, change.schedule
    if change.kind != "new_schedule" or s is None or not isinstance(event, ScheduleCreated):
        return None
    texts = f"{s.name}{s.owner}{s.app}{s.version}{s.reason}{event.actor}"
    return event if "\0" not in texts else None
