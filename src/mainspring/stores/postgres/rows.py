"""Rows in and out: arrays for `unnest` one way, records the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from mainspring.model.change import Body
from mainspring.model.events import Event, decode_event, encode_data
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule, ScheduleSpec

_encoder = msgspec.json.Encoder()

#: now: the instant a test gives, or the server's own; the same in every statement of a transaction.
NOW = "coalesce($1::bigint, floor(extract(epoch FROM now()) * 1000)::bigint)"
#: By far the quickest way from a state to its text.
STATE_TEXT = {state: str(state.value) for state in State}
CLAIMABLE = "('waiting', 'retrying')"
#: Asked of rows found by their id: in these words no plan can answer it by a partial index and read that whole.
STILL_RUNNING = "(r.state || '') = 'running'"
OPEN = "('blocked', 'waiting', 'running', 'retrying')"


def given(columns: Mapping[str, str], first: int = 1, alias: str = "i") -> str:
    """SQL for rows that come as one array a column, from parameter `first` on."""
    arrays = ", ".join(f"${first + k}::{kind}[]" for k, kind in enumerate(columns.values()))
    return f"unnest({arrays}) WITH ORDINALITY AS {alias}({', '.join(columns)}, ord)"


def arrays(rows: Sequence[Sequence[Any]], width: int) -> list[Any]:
    """The rows, column by column; one that holds nothing but NULL is left empty, `unnest` fills it up again."""
    if not rows:
        return [()] * width
    count = len(rows)
    return [() if column.count(None) == count else column for column in zip(*rows, strict=True)]


#: Between the values of a column that comes as one text; where one holds it, the column cannot come so.
BETWEEN = "\x1f"


def told(columns: Mapping[str, str], first: int = 1) -> str:
    """SQL for columns that come as one text each: the driver looks at every value of an array, and not cheaply."""
    return ", ".join(
        f"string_to_array(${first + k}::text, E'\\x1f')::{kind}[]" for k, kind in enumerate(columns.values())
    )


def one_text(values: Sequence[Any]) -> str | None:
    """Values that are not NULL as one text, for `told`; None when they cannot be told so."""
    text = BETWEEN.join(values if type(values[0]) is str else map(str, values))
    return text if text and text.count(BETWEEN) == len(values) - 1 else None


def plain_text(text: str | None) -> str | None:
    """PostgreSQL has no U+0000 in a text, so that character is stored as its picture, U+2400."""
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


def _kind(name: str) -> str:
    if name in _INTEGERS:
        return "integer"
    if name in _INSTANTS:
        return "bigint"
    return "boolean" if name in ("catch_up", "dead") else "text"


RUN_COLUMNS = {name: _kind(name) for name in RUN_FIELDS}
_TEXTS = tuple(i for i, name in enumerate(RUN_FIELDS) if RUN_COLUMNS[name] == "text" and name != "state")
#: What a run is born with; the rest of a fresh run's row is the same for all.
_BORN_WITH = RUN_FIELDS[: RUN_FIELDS.index("epoch")]
FRESH_COLUMNS = {name: RUN_COLUMNS[name] for name in _BORN_WITH}
FRESH = len(_BORN_WITH)
_LIFE = astuple(Run(id="", task=""))[FRESH:]
_CREATED, _ENDED, _N = (RUN_FIELDS.index(name) for name in ("created_at", "ended_at", "n"))
_TEXTS_AT_BIRTH = tuple(i for i in _TEXTS if i < FRESH and i not in (_GATES, _OPTIONS))


def _literal(value: object) -> str:
    return "NULL" if value is None else str(value).lower()


#: A fresh run's columns in the order of `Run`: of the row `i`, or the same for all.
FRESH_VALUES = [f"i.{name}" for name in _BORN_WITH] + [
    "(SELECT now FROM t)" if name == "created_at" else _literal(value)
    for name, value in zip(RUN_FIELDS[FRESH:], _LIFE, strict=True)
]


def run_columns(alias: str) -> str:
    """Every column of a run, in the order of `Run`."""
    return ", ".join(f"{alias}.{name}" for name in RUN_FIELDS)


#: Runs to which nothing has happened, from `i`; `t` says what time it is; one that exists is passed over.
INSERT_FRESH = f"""
    INSERT INTO §run ({", ".join(RUN_FIELDS)}) SELECT {", ".join(FRESH_VALUES)} FROM i ORDER BY i.ord
    ON CONFLICT DO NOTHING"""  # noqa: S608 - column names, no input


#: Runs of any kind, from `RUN_COLUMNS`.
INSERT_RUNS = f"""
INSERT INTO §run ({", ".join(RUN_FIELDS)}) SELECT {run_columns("i")} FROM {given(RUN_COLUMNS)} ORDER BY i.ord
ON CONFLICT DO NOTHING RETURNING id
"""  # noqa: S608


def fresh_row(run: Run, n: int) -> list[Any] | None:
    """A row of `FRESH_COLUMNS`, or None when something has happened to the run already."""
    values = astuple(run)
    if values[FRESH:] != _LIFE:
        return None
    row = list(values[:FRESH])
    _as_stored(row, run, n)
    return row


def run_row(run: Run, n: int, created_at: int, ended_at: int | None) -> list[Any]:
    """A row for `INSERT_RUNS`."""
    row = list(astuple(run))
    _as_stored(row, run, n)
    row[_CREATED], row[_ENDED] = created_at, ended_at
    for i in _TEXTS:
        if i >= FRESH:
            row[i] = plain_text(row[i])
    return row


def _as_stored(row: list[Any], run: Run, n: int) -> None:
    row[_N] = n
    row[_STATE] = STATE_TEXT[run.state]
    for i in _TEXTS_AT_BIRTH:
        text = row[i]
        if text is not None and "\0" in text:
            row[i] = plain_text(text)
    row[_GATES] = _encoder.encode(run.gates).decode() if run.gates else None
    row[_OPTIONS] = None if run.options is None else _encoder.encode(run.options).decode()


def read_run(record: Sequence[Any]) -> Run:
    """A run of a record that begins with `run_columns`."""
    values = list(record[: len(RUN_FIELDS)])
    gates, options = values[_GATES], values[_OPTIONS]
    values[_GATES] = () if gates is None else msgspec.json.decode(gates)
    if options is not None:
        values[_OPTIONS] = msgspec.json.decode(options)
    return msgspec.convert(values, Run)


# ── schedules ───────────────────────────────────────────────────────────────

SCHEDULE_FIELDS = Schedule.__struct_fields__
_spec = msgspec.json.Decoder(ScheduleSpec)
#: What a change may set, with the kind of each.
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
}


def schedule_columns(alias: str) -> str:
    """Every column of a schedule, in the order of `Schedule`."""
    return ", ".join(f"{alias}.{name}" for name in SCHEDULE_FIELDS)


def schedule_values(schedule: Schedule) -> list[Any]:
    """The values of `SCHEDULE_VALUES`."""
    own = {"spec": _encoder.encode(schedule.spec).decode(), "body": schedule.spec.body}
    values = (own[name] if name in own else getattr(schedule, name) for name in SCHEDULE_VALUES)
    return [plain_text(value) if isinstance(value, str) else value for value in values]


def read_schedule(record: Sequence[Any]) -> Schedule:
    """A schedule of a record that begins with `schedule_columns`."""
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
_NAMES = ", ".join(EVENT_COLUMNS)
#: at, then `EVENT_COLUMNS`: numbered in the order they come.
INSERT_EVENTS = f"""
INSERT INTO §event (at, {_NAMES}) SELECT $1::bigint, {_NAMES} FROM {given(EVENT_COLUMNS, 2)} ORDER BY i.ord
"""  # noqa: S608
_READ = ("seq", "at", "ns", "schedule_id", "run_id", "n", "v", "actor", "change", "epoch", "attempt", "owner")


def event_columns(alias: str) -> str:
    """What `read_event` reads."""
    return ", ".join(f"{alias}.{name}" for name in ("type", "data", *_READ))


def event_row(event: Event, change: str | None, n: int | None) -> tuple[Any, ...]:
    """A row for `INSERT_EVENTS`."""
    return (
        plain_text(event.ns),
        event.schedule_id,
        event.run_id,
        n,
        type(event).__name__,
        event.v,
        plain_text(event.actor),
        plain_text(change),
        event.epoch,
        event.attempt,
        plain_text(event.owner),
        encode_data(event),
    )


def read_event(record: Sequence[Any]) -> Event:
    """The event of a record that begins with `event_columns`; absent columns are left to the event's defaults."""
    columns = {name: value for name, value in zip(_READ, record[2:], strict=False) if value is not None}
    return decode_event(record[0], columns, record[1])


def body_rows(bodies: Iterable[Body]) -> list[tuple[str, str]]:
    """Payloads, each once, in an order that is the same for every writer: two writers never wait for each other."""
    return sorted({body.id: body.data for body in bodies}.items())
