"""The store's `restore`: write rows and events of another store as they are, for `mainspring copy`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from mainspring.backends.sqlite.database import Database
from mainspring.backends.sqlite.rows import RUN_FIELDS, STATE_TEXT, replace_nul
from mainspring.model.event_codec import encode_data
from mainspring.model.events import Event
from mainspring.model.instant import Ms
from mainspring.model.lease import Lease
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Page

_encoder = msgspec.json.Encoder()
_SCHEDULE_FIELDS = (*Schedule.__struct_fields__, "body", "touched")
_GATES, _OPTIONS, _STATE = (RUN_FIELDS.index(name) for name in ("gates", "options", "state"))


def _put(table: str, fields: Sequence[str], key: str) -> str:
    """Return a statement that inserts a row with these fields, or overwrites the row with the same key.

    `key`: the names of the key's fields, joined by ", ".
    """
    others = ", ".join(f"{name} = excluded.{name}" for name in fields if name not in key.split(", "))
    return (
        f"INSERT INTO {table} ({', '.join(fields)}) VALUES ({', '.join('?' * len(fields))}) "  # noqa: S608 - field names
        f"ON CONFLICT ({key}) DO UPDATE SET {others}"
    )


_PUT_RUNS = _put("run", RUN_FIELDS, "id")
_PUT_SCHEDULES = _put("schedule", _SCHEDULE_FIELDS, "id")
#: Namespace, name, id. A schedule that still has the name here has another one, or is deleted, in the other store: its
#: row follows, and until then its name is free.
_FREE_NAME = "UPDATE schedule SET state = 'deleted' WHERE ns = ? AND name = ? AND id <> ? AND state <> 'deleted'"
_PUT_GATES = _put("gate_limit", ("name", "max", "closed_until"), "name")
_FREE_GATES = "DELETE FROM gate_held WHERE name = ?"
_HOLD_GATES = "INSERT INTO gate_held (name, held) VALUES (?, ?)"
_PUT_TALLIES = _put("tally", ("schedule_id", "day", "outcome", "count"), "schedule_id, day, outcome")
_PUT_LEASES = _put("lease", ("name", "owner", "epoch", "expires_at", "renewed_at", "data", "live"), "name")
_PUT_BODIES = "INSERT OR IGNORE INTO body (id, data) VALUES (?, ?)"
_ADD_SPANS = (
    'INSERT INTO span (schedule_id, revision, "after", through, count, reason, ns) VALUES (?, ?, ?, ?, ?, ?, ?)'
)
#: As everywhere in the log, the run's id (`run_ref`) is stored with its first event only, or if the run has no row.
_ADD_EVENTS = """
INSERT INTO event (seq, at, ns, schedule_id, rid, run_ref, n, type, v, actor, change, epoch, attempt, owner, data)
SELECT ?1, ?2, ?3, ?4, r.rid, CASE WHEN r.rid IS NULL OR ?6 = 1 THEN ?5 END, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14
FROM (SELECT 1) LEFT JOIN run r ON r.id = ?5
"""


def restore(db: Database, page: Page) -> bool:
    """Write the page in one transaction and return True, if the log's last event has the number `page.after`.

    Else write nothing and return False.
    """
    _, lease_now = db.clocks(None)
    with db.write("restore"):
        if (db.value("SELECT max(seq) FROM event") or 0) != page.after:
            return False
        _write_page(db, page, lease_now)
    return True


def _write_page(db: Database, page: Page, lease_now: Ms) -> None:
    """Write the page: its rows replace rows with equal keys, and its spans and events are added.

    Payloads that exist stay as they are. `lease_now`: the present time by the clock of leases.
    """
    many = db.connection.executemany
    many(_PUT_BODIES, (_plain(astuple(body)) for body in page.bodies))
    # Ended runs first: in this store, such a run may still be open, with the unique key of an open run of the page.
    many(_PUT_RUNS, map(_run, sorted(page.runs, key=lambda run: run.ended_at is None)))
    many(_FREE_NAME, (_plain((row.ns, row.name, row.id)) for row in page.schedules if row.state != "deleted"))
    many(_PUT_SCHEDULES, (_schedule(row, page.touched.get(row.id, 0)) for row in page.schedules))
    many("DELETE FROM span WHERE schedule_id = ? AND through >= ?", page.cuts)
    many(_ADD_SPANS, (_plain(astuple(span)) for span in page.spans))
    many(_PUT_GATES, (_plain((gate.name, gate.max, gate.closed_until)) for gate in page.gates))
    many(_FREE_GATES, (_plain((gate.name,)) for gate in page.gates))
    many(_HOLD_GATES, (_plain((gate.name, gate.held)) for gate in page.gates if gate.held > 0))
    many(_PUT_TALLIES, ((row.schedule_id or "", row.day, row.outcome, row.count) for row in page.tallies))
    many(_PUT_LEASES, (_plain(_lease(row, lease_now)) for row in page.leases))
    many(_ADD_EVENTS, map(_event, page.events))


def _plain(values: Iterable[Any]) -> list[Any]:
    """Return the values with U+0000 replaced by U+2400 in texts, because SQLite's JSON functions end a text there."""
    return [replace_nul(value) if isinstance(value, str) else value for value in values]


def _lease(row: Lease, lease_now: Ms) -> tuple[Any, ...]:
    """Return the values of a named lease for the statement `_PUT_LEASES`: it ends `left` ms after `lease_now`."""
    return row.name, row.owner, row.epoch, lease_now + row.left, row.renewed_at, row.data, int(row.left > 0)


def _run(run: Run) -> list[Any]:
    """Return the values of a run for the statement `_PUT_RUNS`, in the order of its columns."""
    row = _plain(astuple(run))
    row[_STATE] = STATE_TEXT[run.state]
    row[_GATES] = _encoder.encode(run.gates).decode() if run.gates else None
    row[_OPTIONS] = None if run.options is None else _encoder.encode(run.options).decode()
    return row


def _schedule(row: Schedule, touched: int) -> list[Any]:
    """Return the values of a schedule for the statement `_PUT_SCHEDULES`, in the order of its columns.

    `touched`: the schedule's number of touches, 0 for none.
    """
    own = {"spec": _encoder.encode(row.spec).decode(), "body": row.spec.body, "touched": touched}
    return _plain(own[name] if name in own else getattr(row, name) for name in _SCHEDULE_FIELDS)


def _event(event: Event) -> list[Any]:
    """Return the values of an event for the statement `_ADD_EVENTS`, in the order of its parameters."""
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
