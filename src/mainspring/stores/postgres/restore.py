"""Another store's content, written as it is: a page in one transaction, if the log ends where the page begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import astuple

from mainspring.model.schedule import Schedule
from mainspring.ports.store import Page
from mainspring.stores.postgres import apply_sql as sql
from mainspring.stores.postgres import migrations
from mainspring.stores.postgres.database import Database
from mainspring.stores.postgres.errors import DRIVER, translate
from mainspring.stores.postgres.rows import (
    EVENT_COLUMNS,
    RUN_COLUMNS,
    SCHEDULE_VALUES,
    arrays,
    body_rows,
    event_row,
    given,
    plain_text,
    run_row,
    schedule_values,
)
from mainspring.stores.postgres.settings import PostgresSettings


def _put(table: str, columns: Mapping[str, str], key: str) -> str:
    """Insert rows, or give those of the same key these values."""
    names = ", ".join(columns)
    others = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key.split(", "))
    return f"""
INSERT INTO §{table} ({names}) SELECT {names} FROM {given(columns)} ORDER BY i.ord
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
_PUT_RUNS = _put("run", RUN_COLUMNS, "id")
_PUT_SCHEDULES = _put("schedule", _SCHEDULE_COLUMNS, "id")
_PUT_GATES = _put("gate", sql.GATE_COLUMNS, "name")
_PUT_TALLIES = _put("tally", _TALLY_COLUMNS, "schedule_id, day, outcome")
_ALL_EVENT_COLUMNS = {"seq": "bigint", "at": "bigint", **EVENT_COLUMNS}
_NAMES = ", ".join(_ALL_EVENT_COLUMNS)
_ADD_EVENTS = f"""
INSERT INTO §event ({_NAMES}) OVERRIDING SYSTEM VALUE
SELECT {_NAMES} FROM {given(_ALL_EVENT_COLUMNS)} ORDER BY i.ord
"""  # noqa: S608
#: Nobody else may write to the log between this look and the commit.
_ALONE = "LOCK TABLE §event IN SHARE ROW EXCLUSIVE MODE"
_END = "SELECT coalesce(max(seq), 0) FROM §event"
#: What is written next gets a greater number.
_GO_ON = "SELECT setval(pg_get_serial_sequence('§event', 'seq'), $1::bigint)"


async def restore(db: Database, page: Page) -> bool:
    """All of the page, or nothing when the log ends elsewhere."""
    # A key that an ended run gave up may be another's by now.
    runs = sorted(page.runs, key=lambda run: run.ended_at is None)
    batches: tuple[tuple[str, Sequence[Sequence[Any]]], ...] = (
        (sql.INSERT_BODIES, body_rows(page.bodies)),
        (_PUT_RUNS, [run_row(run, run.n, run.created_at, run.ended_at) for run in runs]),
        (_PUT_SCHEDULES, [_schedule(row, page.touched.get(row.id, 0)) for row in page.schedules]),
        (sql.INSERT_SPANS, [_plain(astuple(span)) for span in page.spans]),
        (_PUT_GATES, [_plain(astuple(gate)) for gate in page.gates]),
        (_PUT_TALLIES, [(row.schedule_id or "", row.day, row.outcome, row.count) for row in page.tallies]),
        (_ADD_EVENTS, [(event.seq, event.at, *event_row(event, event.change, event.n)) for event in page.events]),
    )
    async with db.transaction("restore") as session:
        await session.fetch(_ALONE)
        if await session.value(_END) != page.after:
            return False
        for statement, rows in batches:
            if rows:
                await session.fetch(statement, *arrays(rows, len(rows[0])))
        if page.events:
            await session.value(_GO_ON, page.events[-1].seq)
    return True


async def exists(settings: PostgresSettings) -> bool:
    """True when the schema is there, whatever its number; looking creates nothing."""
    connection = await Database(settings, None, None).connect_patiently()
    try:
        return (await migrations.read_state(connection, settings.schema)).exists
    except DRIVER as error:
        raise translate(error, settings.where) from error
    finally:
        await connection.close()


def _schedule(row: Schedule, touched: int) -> list[Any]:
    return [row.id, row.n, row.created_at, row.updated_at, touched, *schedule_values(row)]


def _plain(values: Sequence[Any]) -> list[Any]:
    return [plain_text(value) if isinstance(value, str) else value for value in values]
