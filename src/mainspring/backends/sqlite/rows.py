"""Encoding of rows for SQLite: any number of rows is one JSON text, in both directions.

Rows that are written most, such as new runs and events, are bound value by value instead: that is faster than JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, cast

import msgspec
from msgspec.structs import astuple

from mainspring.model.event_codec import decode_event, encode_data
from mainspring.model.events import Event
from mainspring.model.run import Run, State, differs_only_in_id_and_body
from mainspring.model.schedule import Schedule

_encoder = msgspec.json.Encoder()

# ── rows as parameters ──────────────────────────────────────────────────────


def pack(rows: Any) -> str:
    """Return the rows as JSON text for `json_each`.

    U+0000 is replaced by its symbol, U+2400: SQLite's JSON functions end a text there.
    """
    data = _encoder.encode(rows)
    if b"\\u0000" in data:
        data = _encoder.encode(_without_nul(rows))
    return data.decode()


def replace_nul(text: str | None) -> str | None:
    """Return a text that is bound as it is with U+0000 replaced by U+2400, as `pack` does; None stays None."""
    return text if text is None or "\0" not in text else text.replace("\0", "\u2400")


def _without_nul(value: Any) -> Any:
    """Return the value with U+0000 replaced by U+2400 in its texts, at any depth of lists and tuples."""
    if isinstance(value, str):
        return value.replace("\0", "\u2400")
    if isinstance(value, list | tuple):
        return [_without_nul(item) for item in value]
    return value


#: Makes the rows of the first parameter a table `j`. Materialized: else SQLite would render each row as text again for
#: every value read from it.
WITH_ROWS = "WITH j AS MATERIALIZED (SELECT value FROM json_each(?1))"


def item(index: int) -> str:
    """Return the SQL for one value of a row of `WITH_ROWS`."""
    return f"json_extract(j.value, '$[{index}]')"


#: The rows that `Database.run_rows` binds, as a table `v` with columns `column1`, `column2`, ….
BOUND_ROWS = "(VALUES %ROWS%) AS v"
#: Number of bound rows in one statement.
MAX_STATEMENT_ROWS = 256


@cache
def expand_rows(template: str, width: int, rows: int) -> str:
    """Return the statement of a template with `BOUND_ROWS`, for `rows` rows of `width` values."""
    row = "(" + ", ".join("?" * width) + ")"
    return template.replace("%ROWS%", ", ".join([row] * rows))


def statement_size(rows: int) -> int:
    """Return `rows` rounded up to the number of rows to bind; the added rows are all NULL, and templates skip them.

    Why: rounded numbers need few prepared statements, and less than a quarter of the bound rows is empty.
    """
    step = 1 << max(0, rows.bit_length() - 3)
    return -(-rows // step) * step


def column(index: int) -> str:
    """Return the SQL for one value of a row of `BOUND_ROWS`."""
    return f"v.column{index + 1}"


# ── runs ────────────────────────────────────────────────────────────────────

RUN_FIELDS = Run.__struct_fields__
#: The fields that a run gets when it is created. The others, but for `created_at`, have defaults until it is claimed.
_CREATION_FIELDS = RUN_FIELDS[: RUN_FIELDS.index("epoch")]
#: A row for the INSERT statements. The row of a new run ends with the guard's unique key.
_ROW = (*_CREATION_FIELDS, "mark", "guard_key", *RUN_FIELDS[len(_CREATION_FIELDS) :])
_AT = {name: i for i, name in enumerate(_ROW)}
_NEW_ROW_LENGTH = _AT["guard_key"] + 1
_LIFE_DEFAULTS = astuple(Run(id="", task=""))[len(_CREATION_FIELDS) :]
_ID, _BODY = _AT["id"], _AT["body"]
_N, _STATE, _GATES, _OPTIONS = (_AT[name] for name in ("n", "state", "gates", "options"))


_AS_JSON = {"gates": "iif(r.gates IS NULL, json_array(), json(r.gates))", "options": "json(r.options)"}


def run_json(**others: str) -> str:
    """Return SQL for the run of alias `r` as a JSON array; `others`: SQL for fields that are not read from the row."""
    values = {name: f"r.{name}" for name in RUN_FIELDS} | _AS_JSON | others
    return f"json_array({', '.join(values[name] for name in RUN_FIELDS)})"


RUN_JSON = run_json()
#: A dictionary is by far the fastest way from a state to its text.
STATE_TEXT = {state: str(state.value) for state in State}
#: Not strict, because booleans are stored as 0 and 1.
_runs = msgspec.json.Decoder(list[Run], strict=False)


def read_runs(text: str) -> list[Run]:
    """Decode a `json_group_array` of `RUN_JSON`."""
    return _runs.decode(text)


def _full_run_value(name: str) -> str:
    """Return SQL for the value of a field in a bound row that has all fields of a run."""
    return "?1" if name == "created_at" else column(_AT[name])


def _new_run_value(name: str) -> str:
    """Return SQL for the value of a field of a new run: half of the fields have their defaults and are not bound."""
    if _AT[name] < _NEW_ROW_LENGTH or name == "created_at":
        return _full_run_value(name)
    default = _LIFE_DEFAULTS[RUN_FIELDS.index(name) - len(_CREATION_FIELDS)]
    return "NULL" if default is None else str(int(default))


def _insert(values: Iterable[str]) -> str:
    """Return an INSERT of runs, with created_at as first parameter; a run that exists is skipped.

    It exists if its id, its fire or the unique key of an open run is taken. `values`: SQL for each field of a run.
    """
    return f"""
INSERT OR IGNORE INTO run ({", ".join(RUN_FIELDS)}, mark)
SELECT {", ".join(values)}, {column(_AT["mark"])} FROM {BOUND_ROWS}
WHERE {column(_AT["id"])} IS NOT NULL AND ({column(_AT["guard_key"])} IS NULL OR NOT EXISTS (
    SELECT 1 FROM run o WHERE o.ns = {column(_AT["ns"])} AND o.unique_key = {column(_AT["guard_key"])}
      AND o.unique_key IS NOT NULL AND o.ended_at IS NULL))
"""  # noqa: S608 - field names, no input


_INSERT_RUNS = _insert(map(_full_run_value, RUN_FIELDS))
INSERT_NEW_RUNS = _insert(map(_new_run_value, RUN_FIELDS))
#: SQL for the fields that differ if a new run is written as running, as if claimed. `INSERT_RUNNING_RUNS` has the
#: parameters created_at, owner, end of the lease, then rows of new runs.
_CLAIMED_VALUES = {
    "state": "'running'",
    "n": "2",
    "epoch": "1",
    "attempt": "1",
    "started_at": f"max(?1, {column(_AT['ready_at'])})",
    "owner": "?2",
    "lease_until": "?3",
}
INSERT_RUNNING_RUNS = _insert(_CLAIMED_VALUES.get(name) or _new_run_value(name) for name in RUN_FIELDS)


def insert_run_statement(row: list[Any], created_at: int) -> tuple[str, list[Any]]:
    """Return an INSERT of one run, given as the row of a new run, and the values that it binds. Changes `row`.

    Columns without a value are left out of the statement, which makes it measurably faster.
    """
    row[-1] = created_at  # takes the place of the guard's key
    filled = tuple([index for index, value in enumerate(row) if value is not None])
    return _insert_run_sql(filled), [row[index] for index in filled]


@cache
def _insert_run_sql(filled: tuple[int, ...]) -> str:
    """Return the INSERT of a new run whose row has values at these indexes; the last index is that of `created_at`."""
    names = [*_ROW[: _NEW_ROW_LENGTH - 1], "created_at"]
    values = dict.fromkeys([names[index] for index in filled], "?")
    for name in RUN_FIELDS[len(_CREATION_FIELDS) :]:
        if name != "created_at" and (value := _new_run_value(name)) != "NULL":
            values[name] = value
    return f"INSERT OR IGNORE INTO run ({', '.join(values)}) VALUES ({', '.join(values.values())})"  # noqa: S608


def is_new_row(row: list[Any]) -> bool:
    """Return True for a short `run_row`: the fields that a run gets after its creation have their defaults."""
    return len(row) == _NEW_ROW_LENGTH


def insert_runs_statement(rows: list[list[Any]]) -> tuple[str, list[list[Any]]]:
    """Return an INSERT for these rows of `run_row`, and the rows at the width it takes.

    Its parameter before the rows is created_at.
    """
    if all(map(is_new_row, rows)):
        return INSERT_NEW_RUNS, rows
    return _INSERT_RUNS, [row if len(row) > _NEW_ROW_LENGTH else [*row, *_LIFE_DEFAULTS] for row in rows]


def run_row(run: Run, n: int, ended_at: int | None, mark: int, guard_key: str | None) -> list[Any]:
    """Return a run's row for the INSERT statements. It is short (`is_new_row`) if the run is new.

    `n`: the number of the run's events. `ended_at` None: the run is open. `guard_key`: a unique key; if an open run has
    it, the INSERT skips the row.
    """
    values = astuple(run)
    row = [*values[: len(_CREATION_FIELDS)], mark, guard_key]
    row[_N] = n
    row[_STATE] = STATE_TEXT[run.state]
    row[_GATES] = _encoder.encode(run.gates).decode() if run.gates else None
    if run.options is not None:
        row[_OPTIONS] = _encoder.encode(run.options).decode()
    life = values[len(_CREATION_FIELDS) :]
    if ended_at is not None or life != _LIFE_DEFAULTS:
        row += life
        row[_AT["ended_at"]] = ended_at
    return row


def new_run_rows(runs: Iterable[Run], mark: int) -> list[list[Any]] | None:
    """Return rows for `INSERT_NEW_RUNS`, all with this mark, or None if one of the runs is not new (`is_new_row`).

    A run that differs from the one before it only in id and body gets a copy of its row: that is faster.
    """
    rows: list[list[Any]] = []
    model: Run | None = None
    for run in runs:
        if model is not None and differs_only_in_id_and_body(run, model):
            row = rows[-1].copy()
            row[_ID], row[_BODY] = run.id, run.body
        else:
            model, row = run, run_row(run, 1, None, mark, None)
            if not is_new_row(row):
                return None
        rows.append(row)
    return rows


def row_mark(row: list[Any]) -> int:
    """Return the mark in a `run_row`."""
    return cast("int", row[_AT["mark"]])


def row_moves(row: list[Any]) -> int:
    """Return the `n` in a `run_row`: the number of the run's events."""
    return cast("int", row[_AT["n"]])


# ── schedules ───────────────────────────────────────────────────────────────

#: A schedule as one JSON object, of the table alias `s`.
SCHEDULE_JSON = (
    "json_object("
    + ", ".join(
        f"'{name}', " + ("json(s.spec)" if name == "spec" else f"s.{name}") for name in Schedule.__struct_fields__
    )
    + ")"
)
_schedules = msgspec.json.Decoder(list[Schedule])


def read_schedules(text: str) -> list[Schedule]:
    """Decode a `json_group_array` of `SCHEDULE_JSON`."""
    return _schedules.decode(text)


# ── events ──────────────────────────────────────────────────────────────────

_EVENT_COLUMNS = (
    "seq",
    "at",
    "ns",
    "schedule_id",
    "run_id",
    "n",
    "v",
    "actor",
    "change",
    "epoch",
    "attempt",
    "owner",
)
#: The id of an event's run: as the run's first event states it, or the row's if that event was removed.
_RUN_ID = "coalesce(e.run_ref, (SELECT b.run_ref FROM event b WHERE b.rid = e.rid AND b.n = 1), r.id)"
#: An event as one JSON array, of the aliases `e` (event) and `r` (its run, outer-joined by rid).
EVENT_JSON = (
    "json_array(e.type, e.data, " + ", ".join(_RUN_ID if c == "run_id" else f"e.{c}" for c in _EVENT_COLUMNS) + ")"
)
_event_rows = msgspec.json.Decoder(list[list[Any]])

#: Parameter: at, then rows of `event_row`. An event with a mark is appended only if its run's row bears that mark, that
#: is, if this batch wrote it.
INSERT_EVENTS = f"""
INSERT INTO event (at, ns, schedule_id, rid, run_ref, n, type, v, actor, change, epoch, attempt, owner, data)
SELECT ?1, {column(2)}, {column(3)}, r.rid,
       CASE WHEN r.rid IS NULL OR ({column(1)} IS NOT NULL AND r.n - {column(4)} = 1) THEN {column(0)} END,
       CASE WHEN {column(1)} IS NULL THEN {column(4)} ELSE r.n - {column(4)} END,
       {", ".join(map(column, range(5, 13)))}
FROM {BOUND_ROWS} LEFT JOIN run r ON r.id = {column(0)}
WHERE {column(5)} IS NOT NULL AND ({column(1)} IS NULL OR r.mark = {column(1)})
"""  # noqa: S608 - positions, no input


def event_row(event: Event, change: str | None, mark: int | None, n: int | None) -> list[Any]:
    """Return a row for `INSERT_EVENTS`.

    `change`: the id of its change; None: the store itself writes it. Without a mark, `n` is the event's number in its
    stream, None for a note. With a mark, `n` is the number of later events of the run in this change: the statement
    subtracts it from the `n` in the run's row.
    """
    return [
        event.run_id,
        mark,
        event.ns,
        event.schedule_id,
        n,
        type(event).__name__,
        event.v,
        replace_nul(event.actor),
        change,
        event.epoch,
        event.attempt,
        event.owner,
        encode_data(event),
    ]


def read_events(text: str) -> list[Event]:
    """Decode a `json_group_array` of `EVENT_JSON`; columns that are NULL get the event's defaults."""
    found = []
    for kind, data, *values in _event_rows.decode(text):
        columns = {name: value for name, value in zip(_EVENT_COLUMNS, values, strict=True) if value is not None}
        found.append(decode_event(kind, columns, data))
    return found
