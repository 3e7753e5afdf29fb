"""Restoring another store's content: a page is written in one transaction, if the log ends where the page begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import astuple

from mainspring.backends.postgres import apply_sql as sql
from mainspring.backends.postgres import migrations
from mainspring.backends.postgres.database import Database
from mainspring.backends.postgres.errors import DRIVER_ERRORS, translate
from mainspring.backends.postgres.rows import (
    EVENT_COLUMNS,
    NOW_SQL,
    RUN_COLUMNS,
    SCHEDULE_VALUES,
    body_rows,
    column_arrays,
    event_row,
    run_row,
    schedule_values,
    storable_text,
    unnest_columns,
)
from mainspring.backends.postgres.settings import PostgresSettings
from mainspring.model.instant import Ms
from mainspring.model.lease import Lease
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Page


def _put(table: str, columns: Mapping[str, str], key: str) -> str:
    """Return SQL that inserts rows into a table, and overwrites rows whose `key` exists.

    `columns`: the SQL type of each column by its name; the statement's parameters are one array per column. `key`: the
    columns of the primary key, separated by ", ".
    """
    names = ", ".join(columns)
    others = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key.split(", "))
    return f"""
INSERT INTO §{table} ({names}) SELECT {names} FROM {unnest_columns(columns)} ORDER BY i.ord
ON CONFLICT ({key}) DO UPDATE SET {others}
"""  # noqa: S608 - column names, no input


_SCHEDULE_COLUMNS = {
    "id": "text",
    "n": "integer",
    "created_at": "bigint",
    "updated_at": "bigint",
    "touched": "integer",
    **SCHEDULE_VALUES,
}
_TALLY_COLUMNS = {"schedule_id": "text", "day": "integer", "outcome": "text", "count": "bigint"}
_LEASE_COLUMNS = {
    "name": "text",
    "owner": "text",
    "epoch": "integer",
    "expires_at": "bigint",
    "renewed_at": "bigint",
    "data": "text",
    "live": "boolean",
}
#: The server's time now, in milliseconds. Parameter: the instant of a test, or NULL.
_READ_NOW = f"SELECT {NOW_SQL}"
_PUT_LEASES = _put("lease", _LEASE_COLUMNS, "name")
_PUT_RUNS = _put("run", RUN_COLUMNS, "id")
_PUT_SCHEDULES = _put("schedule", _SCHEDULE_COLUMNS, "id")
#: Parameters: namespaces, names, ids. A schedule that still has one of these names here has another one, or is deleted,
#: in the other store: its row follows, and until then its name is free.
_FREE_NAME_COLUMNS = {"ns": "text", "name": "text", "id": "text"}
_FREE_NAMES = f"""
UPDATE §schedule s SET state = 'deleted' FROM {unnest_columns(_FREE_NAME_COLUMNS)}
WHERE s.ns = i.ns AND s.name = i.name AND s.id <> i.id AND s.state <> 'deleted'
"""  # noqa: S608 - column names, no input
_PUT_GATES = _put("gate", sql.GATE_COLUMNS, "name")
_PUT_TALLIES = _put("tally", _TALLY_COLUMNS, "schedule_id, day, outcome")
_ALL_EVENT_COLUMNS = {"seq": "bigint", "at": "bigint", **EVENT_COLUMNS}
_ALL_EVENT_COLUMN_LIST = ", ".join(_ALL_EVENT_COLUMNS)
_ADD_EVENTS = f"""
INSERT INTO §event ({_ALL_EVENT_COLUMN_LIST}) OVERRIDING SYSTEM VALUE
SELECT {_ALL_EVENT_COLUMN_LIST} FROM {unnest_columns(_ALL_EVENT_COLUMNS)} ORDER BY i.ord
"""  # noqa: S608
#: Keeps other sessions from writing to the log between the check of its end and the commit.
_LOCK_LOG = "LOCK TABLE §event IN SHARE ROW EXCLUSIVE MODE"
_READ_LAST_SEQ = "SELECT coalesce(max(seq), 0) FROM §event"
#: Parameter: the number of an event. The next event gets the number after it.
_SET_NEXT_SEQ = "SELECT setval(pg_get_serial_sequence('§event', 'seq'), $1::bigint)"


async def restore(db: Database, page: Page) -> bool:
    """Write all rows and events of a page, with the ids and numbers that they have there, and return True.

    Rows that exist are overwritten, except payloads, which stay; spans are added. Return False, with nothing written,
    if the last event of this store's log does not have the number `page.after`.
    """
    # Ended runs first: an open run may hold the unique key that an ended run gave up.
    runs = sorted(page.runs, key=lambda run: run.ended_at is None)
    batches: tuple[tuple[str, Sequence[Sequence[Any]]], ...] = (
        (sql.INSERT_BODIES, body_rows(page.bodies)),
        (_PUT_RUNS, [run_row(run, run.n, run.created_at, run.ended_at) for run in runs]),
        (_FREE_NAMES, [(row.ns, storable_text(row.name), row.id) for row in page.schedules if row.state != "deleted"]),
        (_PUT_SCHEDULES, [_schedule(row, page.touched.get(row.id, 0)) for row in page.schedules]),
        (sql.CUT_SPANS, page.cuts),
        (sql.INSERT_SPANS, [_storable(astuple(span)) for span in page.spans]),
        (_PUT_GATES, [_storable(astuple(gate)) for gate in page.gates]),
        (_PUT_TALLIES, [(row.schedule_id or "", row.day, row.outcome, row.count) for row in page.tallies]),
        (_ADD_EVENTS, [(event.seq, event.at, *event_row(event, event.change, event.n)) for event in page.events]),
    )
    async with db.transaction("restore") as session:
        await session.fetch(_LOCK_LOG)
        if await session.value(_READ_LAST_SEQ) != page.after:
            return False
        now = await session.value(_READ_NOW, db.now(None)) if page.leases else 0
        for statement, rows in (*batches, (_PUT_LEASES, [_lease(row, now) for row in page.leases])):
            if rows:
                await session.fetch(statement, *column_arrays(rows, len(rows[0])))
        if page.events:
            await session.value(_SET_NEXT_SEQ, page.events[-1].seq)
    return True


async def exists(settings: PostgresSettings) -> bool:
    """Wait for the server; return True if the store's schema exists, in any version. Nothing is created.

    Raises: `SchemaMismatch` if the schema holds another program's tables; `StoreError` for any other failure.
    """
    connection = await Database(settings, None, None).connect_when_up()
    try:
        return (await migrations.read_state(connection, settings.schema)).exists
    except DRIVER_ERRORS as error:
        raise translate(error, settings.where) from error
    finally:
        await connection.close()


def _lease(row: Lease, now: Ms) -> list[Any]:
    """Return the values of a named lease that ends `left` ms after `now`."""
    live = row.left > 0
    return _storable((row.name, row.owner, row.epoch, now + row.left, row.renewed_at, row.data, live))


def _schedule(row: Schedule, touched: int) -> list[Any]:
    return [row.id, row.n, row.created_at, row.updated_at, touched, *schedule_values(row)]


def _storable(values: Sequence[Any]) -> list[Any]:
    return [storable_text(value) if isinstance(value, str) else value for value in values]
