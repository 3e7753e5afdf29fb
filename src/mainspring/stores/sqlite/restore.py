"""Another store's content, written as it is: a page in one transaction, if the log ends where the page begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from mainspring.model.events import Event, encode_data
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Page
from mainspring.stores.sqlite.database import Database
from mainspring.stores.sqlite.rows import RUN_FIELDS, STATE_TEXT, plain_text

_encoder = msgspec.json.Encoder()
_SCHEDULE_FIELDS = (*Schedule.__struct_fields__, "body", "touched")
_GATES, _OPTIONS, _STATE = (RUN_FIELDS.index(name) for name in ("gates", "options", "state"))


def _put(table: str, fields: Sequence[str], key: str) -> str:
    """Insert a row, or give the one of the same key these values."""
    others = ", ".join(f"{name} = excluded.{name}" for name in fields if name not in key.split(", "))
    return (
        f"INSERT INTO {table} ({', '.join(fields)}) VALUES ({', '.join('?' * len(fields))}) "  # noqa: S608 - field names
        f"ON CONFLICT ({key}) DO UPDATE SET {others}"
    )


_PUT_RUNS = _put("run", RUN_FIELDS, "id")
_PUT_SCHEDULES = _put("schedule", _SCHEDULE_FIELDS, "id")
_PUT_GATES = _put("gate_limit", ("name", "max", "closed_until"), "name")
_FREE_GATES = "DELETE FROM gate_held WHERE name = ?"
_HOLD_GATES = "INSERT INTO gate_held (name, held) VALUES (?, ?)"
_PUT_TALLIES = _put("tally", ("schedule_id", "day", "outcome", "count"), "schedule_id, day, outcome")
_PUT_BODIES = "INSERT OR IGNORE INTO body (id, data) VALUES (?, ?)"
_ADD_SPANS = (
    'INSERT INTO span (schedule_id, revision, "after", through, count, reason, ns) VALUES (?, ?, ?, ?, ?, ?, ?)'
)
#: The run's id is said at birth, and where the run has no row.
_ADD_EVENTS = """
INSERT INTO event (seq, at, ns, schedule_id, rid, run_ref, n, type, v, actor, change, epoch, attempt, owner, data)
SELECT ?1, ?2, ?3, ?4, r.rid, CASE WHEN r.rid IS NULL OR ?6 = 1 THEN ?5 END, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14
FROM (SELECT 1) LEFT JOIN run r ON r.id = ?5
"""


def restore(db: Database, page: Page) -> bool:
    """All of the page, or nothing when the log ends elsewhere."""
    with db.write("restore"):
        if (db.value("SELECT max(seq) FROM event") or 0) != page.after:
            return False
        many = db.connection.executemany
        many(_PUT_BODIES, (_plain(astuple(body)) for body in page.bodies))
        # A key that an ended run gave up may be another's by now.
        many(_PUT_RUNS, map(_run, sorted(page.runs, key=lambda run: run.ended_at is None)))
        many(_PUT_SCHEDULES, (_schedule(row, page.touched.get(row.id, 0)) for row in page.schedules))
        many(_ADD_SPANS, (_plain(astuple(span)) for span in page.spans))
        many(_PUT_GATES, (_plain((gate.name, gate.max, gate.closed_until)) for gate in page.gates))
        many(_FREE_GATES, (_plain((gate.name,)) for gate in page.gates))
        many(_HOLD_GATES, (_plain((gate.name, gate.held)) for gate in page.gates if gate.held > 0))
        many(_PUT_TALLIES, ((row.schedule_id or "", row.day, row.outcome, row.count) for row in page.tallies))
        many(_ADD_EVENTS, map(_event, page.events))
    return True


def _plain(values: Iterable[Any]) -> list[Any]:
    return [plain_text(value) if isinstance(value, str) else value for value in values]


def _run(run: Run) -> list[Any]:
    row = _plain(astuple(run))
    row[_STATE] = STATE_TEXT[run.state]
    row[_GATES] = _encoder.encode(run.gates).decode() if run.gates else None
    row[_OPTIONS] = None if run.options is None else _encoder.encode(run.options).decode()
    return row


def _schedule(row: Schedule, touched: int) -> list[Any]:
    own = {"spec": _encoder.encode(row.spec).decode(), "body": row.spec.body, "touched": touched}
    return _plain(own[name] if name in own else getattr(row, name) for name in _SCHEDULE_FIELDS)


def _event(event: Event) -> list[Any]:
    return _plain(
        (
            event.seq,
            event.at,
            event.ns,
            event.schedule_id,
            event.run_id,
            event.n,
            type(event).__name__,
            event.v,
            event.actor,
            event.change,
            event.epoch,
            event.attempt,
            event.owner,
            encode_data(event),
        )
    )
