"""Conversion of model values to rows, sent as arrays for `unnest`, and of the driver's records to model values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from mainspring.model.change import Body
from mainspring.model.event_codec import decode_event, encode_data
from mainspring.model.events import Event
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule, ScheduleSpec

_encoder = msgspec.json.Encoder()

#: SQL: the current instant in milliseconds. It is parameter $1. Outside tests $1 is NULL, and the instant is the
#: server's time at the beginning of the transaction.
NOW_SQL = "coalesce($1::bigint, floor(extract(epoch FROM now()) * 1000)::bigint)"
#: The text of each state. Reading it from this dict is faster than converting the state each time.
STATE_TEXT = {state: str(state.value) for state in State}
#: SQL: the states of a run that waits to be claimed.
CLAIMABLE_STATES = "('waiting', 'retrying')"
#: SQL: true for rows `r`, found by id, that are running. The `|| ''` keeps the server's query planner from using the
#: partial index of running runs, which it would read from end to end.
STILL_RUNNING = "(r.state || '') = 'running'"
#: SQL: the states of a run that has not ended.
OPEN_STATES = "('blocked', 'waiting', 'running', 'retrying')"


def unnest_columns(columns: Mapping[str, str], first: int = 1, alias: str = "i") -> str:
    """Return SQL that turns array parameters, one per column, into rows, with a column `ord` that numbers them.

    `columns`: the SQL type of each column by its name; `first`: the number of the first parameter; `alias`: the name
    under which the rest of the statement refers to the rows.
    """
    parameters = ", ".join(f"${first + k}::{kind}[]" for k, kind in enumerate(columns.values()))
    return f"unnest({parameters}) WITH ORDINALITY AS {alias}({', '.join(columns)}, ord)"


def column_arrays(rows: Sequence[Sequence[Any]], width: int) -> list[Any]:
    """Return `rows`, each of `width` values, as a list of columns: the parameters for `unnest_columns`.

    A column that has only None is returned empty. That costs less, and `unnest` pads the column with NULLs again.
    Without rows, all `width` columns are empty.
    """
    if not rows:
        return [()] * width
    count = len(rows)
    return [() if column.count(None) == count else column for column in zip(*rows, strict=True)]


#: Separates the values of a column that `join_column` joins to one text.
COLUMN_SEPARATOR = "\x1f"


def text_columns(columns: Mapping[str, str], first: int = 1) -> str:
    """Return SQL for one array per column, which the server splits from a text parameter that `join_column` has built.

    `columns`: the SQL type of each column by its name; `first`: the number of the first parameter. Why not array
    parameters: they cost more, because the driver encodes each value.
    """
    return ", ".join(
        f"string_to_array(${first + k}::text, E'\\x1f')::{kind}[]" for k, kind in enumerate(columns.values())
    )


def join_column(values: Sequence[Any]) -> str | None:
    """Join the values of a column, at least one and none of them None, to one text, a parameter for `text_columns`.

    Return None if the text is empty or a value contains the separator: such a column cannot be sent as one text.
    """
    text = COLUMN_SEPARATOR.join(values if type(values[0]) is str else map(str, values))
    return text if text and text.count(COLUMN_SEPARATOR) == len(values) - 1 else None


def storable_text(text: str | None) -> str | None:
    """Return the text with each U+0000, which PostgreSQL cannot store, replaced by U+2400. For None, return None."""
    return text if text is None or "\0" not in text else text.replace("\0", "\u2400")


# ── runs ────────────────────────────────────────────────────────────────────

RUN_FIELDS = Run.__struct_fields__
ID, BODY = RUN_FIELDS.index("id"), RUN_FIELDS.index("body")
_GATES, _OPTIONS, _STATE = (RUN_FIELDS.index(name) for name in ("gates", "options", "state"))
_INTEGERS = ("revision", "priority", "n", "epoch", "attempt", "failures", "crashes")
_INSTANTS = (
    "fire_time",
    "due_at",
    "ready_at",
    "began_at",
    "ms",
    "created_at",
    "started_at",
    "ended_at",
    "lease_until",
)


def _column_type(name: str) -> str:
    if name in _INTEGERS:
        return "integer"
    if name in _INSTANTS:
        return "bigint"
    return "boolean" if name in ("catch_up", "dead") else "text"


RUN_COLUMNS = {name: _column_type(name) for name in RUN_FIELDS}
_TEXT_INDEXES = tuple(i for i, name in enumerate(RUN_FIELDS) if RUN_COLUMNS[name] == "text" and name != "state")
#: The fields of `Run` before `epoch`, in which fresh runs differ. A run is *fresh* if all its other fields have their
#: defaults: it was never started, cancelled, parked or ended.
_FRESH_FIELDS = RUN_FIELDS[: RUN_FIELDS.index("epoch")]
FRESH_COLUMNS = {name: RUN_COLUMNS[name] for name in _FRESH_FIELDS}
FRESH_FIELD_COUNT = len(_FRESH_FIELDS)
_FRESH_DEFAULTS = astuple(Run(id="", task=""))[FRESH_FIELD_COUNT:]
_CREATED, _ENDED, _N = (RUN_FIELDS.index(name) for name in ("created_at", "ended_at", "n"))
_FRESH_TEXT_INDEXES = tuple(i for i in _TEXT_INDEXES if i < FRESH_FIELD_COUNT and i not in (_GATES, _OPTIONS))


def _literal(value: object) -> str:
    return "NULL" if value is None else str(value).lower()


#: SQL: the column values of a fresh run, in the order of the fields of `Run`. The fields before `epoch` come from row
#: `i`, and `created_at` is the instant in the CTE `t`. The others are constants.
FRESH_VALUES = [f"i.{name}" for name in _FRESH_FIELDS] + [
    "(SELECT now FROM t)" if name == "created_at" else _literal(value)
    for name, value in zip(RUN_FIELDS[FRESH_FIELD_COUNT:], _FRESH_DEFAULTS, strict=True)
]


def run_columns(alias: str) -> str:
    """Return SQL for all columns of a run, in the order of `Run`'s fields; `alias`: the table's name in the SQL."""
    return ", ".join(f"{alias}.{name}" for name in RUN_FIELDS)


#: SQL: the order in which rows `i` of runs are inserted. Writers that insert unique keys in one order cannot deadlock.
INSERT_ORDER = "ORDER BY i.unique_key, i.ord"
#: SQL: inserts fresh runs from the CTE `i`, created at the instant in the CTE `t`. Skips a run whose id, fire or unique
#: key exists.
INSERT_FRESH = f"""
    INSERT INTO §run ({", ".join(RUN_FIELDS)}) SELECT {", ".join(FRESH_VALUES)} FROM i {INSERT_ORDER}
    ON CONFLICT DO NOTHING"""  # noqa: S608 - column names, no input


#: Parameters: RUN_COLUMNS. Inserts runs in any state, but skips a run whose id, fire or unique key exists. Returns the
#: ids of the inserted runs.
INSERT_RUNS = f"""
INSERT INTO §run ({", ".join(RUN_FIELDS)}) SELECT {run_columns("i")} FROM {unnest_columns(RUN_COLUMNS)} {INSERT_ORDER}
ON CONFLICT DO NOTHING RETURNING id
"""  # noqa: S608


def fresh_row(run: Run, n: int) -> list[Any] | None:
    """Return the values of a new run for FRESH_COLUMNS, with `n` as the number of its last event.

    Return None if the run is not fresh, that is, if it was started, cancelled, parked or ended before.
    """
    values = astuple(run)
    if values[FRESH_FIELD_COUNT:] != _FRESH_DEFAULTS:
        return None
    row = list(values[:FRESH_FIELD_COUNT])
    _convert_to_columns(row, run, n)
    return row


def run_row(run: Run, n: int, created_at: int, ended_at: int | None) -> list[Any]:
    """Return a row for INSERT_RUNS: the run's values, but with the given `n`, `created_at` and `ended_at`.

    `n`: the number of the run's last event.
    """
    row = list(astuple(run))
    _convert_to_columns(row, run, n)
    row[_CREATED], row[_ENDED] = created_at, ended_at
    for i in _TEXT_INDEXES:
        if i >= FRESH_FIELD_COUNT:
            row[i] = storable_text(row[i])
    return row


def _convert_to_columns(row: list[Any], run: Run, n: int) -> None:
    """Convert the first values of `row`, those of FRESH_COLUMNS, in place from the run's fields to column values.

    The run's `n` is replaced by the argument `n`, its state by the text of the state, gates and options by JSON, and
    U+0000 in texts by U+2400.
    """
    row[_N] = n
    row[_STATE] = STATE_TEXT[run.state]
    for i in _FRESH_TEXT_INDEXES:
        text = row[i]
        if text is not None and "\0" in text:
            row[i] = storable_text(text)
    row[_GATES] = _encoder.encode(run.gates).decode() if run.gates else None
    row[_OPTIONS] = None if run.options is None else _encoder.encode(run.options).decode()


def read_run(record: Sequence[Any]) -> Run:
    """Return the run in a driver's record, whose first columns are those that `run_columns` lists."""
    values = list(record[: len(RUN_FIELDS)])
    gates, options = values[_GATES], values[_OPTIONS]
    values[_GATES] = () if gates is None else msgspec.json.decode(gates)
    if options is not None:
        values[_OPTIONS] = msgspec.json.decode(options)
    return msgspec.convert(values, Run)


# ── schedules ───────────────────────────────────────────────────────────────

SCHEDULE_FIELDS = Schedule.__struct_fields__
_spec = msgspec.json.Decoder(ScheduleSpec)
#: The columns that a change of a schedule may set, with their types.
SCHEDULE_VALUES = {
    "ns": "text",
    "name": "text",
    "owner": "text",
    "origin": "text",
    "app": "text",
    "version": "text",
    "digest": "text",
    "spec": "text",
    "body": "text",
    "state": "text",
    "revision": "integer",
    "anchor": "bigint",
    "cursor": "bigint",
    "next_at": "bigint",
    "fired": "bigint",
    "reason": "text",
    "until": "bigint",
    "rewound": "bigint",
}


def schedule_columns(alias: str) -> str:
    """Return SQL for all columns of a schedule, in the order of the fields of `Schedule`.

    `alias`: the table's name in the SQL.
    """
    return ", ".join(f"{alias}.{name}" for name in SCHEDULE_FIELDS)


def schedule_values(schedule: Schedule) -> list[Any]:
    """Return the values of a schedule for the columns SCHEDULE_VALUES, in their order."""
    own = {"spec": _encoder.encode(schedule.spec).decode(), "body": schedule.spec.body}
    values = (own[name] if name in own else getattr(schedule, name) for name in SCHEDULE_VALUES)
    return [storable_text(value) if isinstance(value, str) else value for value in values]


def read_schedule(record: Sequence[Any]) -> Schedule:
    """Return the schedule in a driver's record, whose first columns are those that `schedule_columns` lists."""
    values = dict(zip(SCHEDULE_FIELDS, record, strict=False))
    values["spec"] = _spec.decode(values["spec"])
    return Schedule(**values)


# ── events ──────────────────────────────────────────────────────────────────

EVENT_COLUMNS = {
    "ns": "text",
    "schedule_id": "text",
    "run_id": "text",
    "n": "integer",
    "type": "text",
    "v": "smallint",
    "actor": "text",
    "change": "text",
    "epoch": "integer",
    "attempt": "integer",
    "owner": "text",
    "data": "text",
}
_EVENT_COLUMN_LIST = ", ".join(EVENT_COLUMNS)
#: Parameters: instant, EVENT_COLUMNS. Appends events to the log. Each gets the instant as `at`. The order of the rows
#: is that of the events' numbers in the log (`seq`).
INSERT_EVENTS = f"""
INSERT INTO §event (at, {_EVENT_COLUMN_LIST})
SELECT $1::bigint, {_EVENT_COLUMN_LIST} FROM {unnest_columns(EVENT_COLUMNS, 2)} ORDER BY i.ord
"""  # noqa: S608
_EVENT_FIELDS = ("seq", "at", "ns", "schedule_id", "run_id", "n", "v", "actor", "change", "epoch", "attempt", "owner")


def event_columns(alias: str) -> str:
    """Return SQL for the columns of an event, in the order that `read_event` expects.

    `alias`: the table's name in the SQL.
    """
    return ", ".join(f"{alias}.{name}" for name in ("type", "data", *_EVENT_FIELDS))


def event_row(event: Event, change: str | None, n: int | None) -> tuple[Any, ...]:
    """Return a row for INSERT_EVENTS; `change`: the id of the change that writes the event, None if no change does.

    `n`: the event's number among the events of its run or schedule; None for a note, an event that changes no row.
    """
    return (
        storable_text(event.ns),
        event.schedule_id,
        event.run_id,
        n,
        type(event).__name__,
        event.v,
        storable_text(event.actor),
        storable_text(change),
        event.epoch,
        event.attempt,
        storable_text(event.owner),
        encode_data(event),
    )


def read_event(record: Sequence[Any]) -> Event:
    """Return the event in a driver's record, whose first columns are those that `event_columns` lists.

    A field whose column is NULL takes its default.
    """
    columns = {name: value for name, value in zip(_EVENT_FIELDS, record[2:], strict=False) if value is not None}
    return decode_event(record[0], columns, record[1])


def body_rows(bodies: Iterable[Body]) -> list[tuple[str, str]]:
    """Return payloads as (id, data), each id once, in the order of ids.

    Why the order: writers that lock rows in one order cannot deadlock.
    """
    return sorted({body.id: body.data for body in bodies}.items())
