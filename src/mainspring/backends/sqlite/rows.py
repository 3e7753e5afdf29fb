"""Encoding of rows for SQLite. Any number of rows is one JSON text, both as a parameter and as a query's answer.

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
    """Return a list of rows or values, or a dictionary, as JSON text for `json_each`.

    In lists, U+0000 is replaced by its symbol, U+2400: SQLite's JSON functions end a text there. In a dictionary it is
    not replaced, so its texts must not contain U+0000.
    """
    data = _encoder.encode(rows)
    if b"\\u0000" in data:
        data = _encoder.encode(_without_nul(rows))
    return data.decode()


def replace_nul(text: str | None) -> str | None:
    """Return the text with U+0000 replaced by U+2400, for values that are bound without `pack`; None stays None."""
    return text if text is None or "\0" not in text else text.replace("\0", "\u2400")


def _without_nul(value: Any) -> Any:
    """Return the value with U+0000 replaced by U+2400 in its texts, at any depth of lists and tuples."""
    if isinstance(value, str):
        return value.replace("\0", "\u2400")
    if isinstance(value, list | tuple):
        return [_without_nul(item) for item in value]
    return value


#: Beginning of a statement: makes the rows of the first parameter, which is JSON, a table `j`. Why it is materialized:
#: SQLite would otherwise render each row as text again for every value read from it.
WITH_ROWS = "WITH j AS MATERIALIZED (SELECT value FROM json_each(?1))"


def item(index: int) -> str:
    """Return the SQL for the value at position `index` (from 0) of a row of `WITH_ROWS`."""
    return f"json_extract(j.value, '$[{index}]')"


#: The rows that `Database.run_rows` binds, as a table `v` with columns `column1`, `column2`, ….
BOUND_ROWS = "(VALUES %ROWS%) AS v"
#: Greatest number of bound rows in one statement.
MAX_STATEMENT_ROWS = 256


@cache
def expand_rows(template: str, width: int, rows: int) -> str:
    """Return the SQL `template` with placeholders for its `BOUND_ROWS`: `rows` rows of `width` values each."""
    row = "(" + ", ".join("?" * width) + ")"
    return template.replace("%ROWS%", ", ".join([row] * rows))


def statement_size(rows: int) -> int:
    """Return how many rows a statement should have to bind `rows` rows: that number, rounded up.

    Rows of NULLs, less than a quarter of all rows, fill the statement; templates skip them. Why: SQLite prepares a
    statement for each different number of rows, and rounding leaves few different numbers.
    """
    step = 1 << max(0, rows.bit_length() - 3)
    return -(-rows // step) * step


def column(index: int) -> str:
    """Return the SQL for the value at position `index` (from 0) of a row of `BOUND_ROWS`."""
    return f"v.column{index + 1}"


# ── runs ────────────────────────────────────────────────────────────────────

RUN_FIELDS = Run.__struct_fields__
#: The fields that a run gets when it is created. All others but `created_at` have their defaults until it is claimed.
_CREATION_FIELDS = RUN_FIELDS[: RUN_FIELDS.index("epoch")]
#: The values of a `run_row`, in order. The row of a new run ends with "guard_key".
_ROW = (*_CREATION_FIELDS, "mark", "guard_key", *RUN_FIELDS[len(_CREATION_FIELDS) :])
_AT = {name: i for i, name in enumerate(_ROW)}
_NEW_ROW_LENGTH = _AT["guard_key"] + 1
_LIFE_DEFAULTS = astuple(Run(id="", task=""))[len(_CREATION_FIELDS) :]
_ID, _BODY = _AT["id"], _AT["body"]
_N, _STATE, _GATES, _OPTIONS = (_AT[name] for name in ("n", "state", "gates", "options"))


_AS_JSON = {"gates": "iif(r.gates IS NULL, json_array(), json(r.gates))", "options": "json(r.options)"}


def run_json(**others: str) -> str:
    """Return SQL for the run of table alias `r` as a JSON array. `others`: field → SQL to use instead of the column."""
    values = {name: f"r.{name}" for name in RUN_FIELDS} | _AS_JSON | others
    return f"json_array({', '.join(values[name] for name in RUN_FIELDS)})"


RUN_JSON = run_json()
#: State → its text: by far faster than `state.value`.
STATE_TEXT = {state: str(state.value) for state in State}
#: Not strict, because booleans are stored as 0 and 1.
_runs = msgspec.json.Decoder(list[Run], strict=False)


def read_runs(text: str) -> list[Run]:
    """Return the runs in a JSON text that a query with `json_group_array` of `RUN_JSON` has returned."""
    return _runs.decode(text)


def _full_run_value(name: str) -> str:
    """Return SQL for the value of a field in a bound row that has all fields of a run.

    `created_at` is not in the row: it is the statement's first parameter.
    """
    return "?1" if name == "created_at" else column(_AT[name])


def _new_run_value(name: str) -> str:
    """Return SQL for the value of a field in a bound row of a new run. Later fields are constants: their defaults."""
    if _AT[name] < _NEW_ROW_LENGTH or name == "created_at":
        return _full_run_value(name)
    default = _LIFE_DEFAULTS[RUN_FIELDS.index(name) - len(_CREATION_FIELDS)]
    return "NULL" if default is None else str(int(default))


def _insert(values: Iterable[str]) -> str:
    """Return an INSERT of runs, with created_at as first parameter, then bound rows. A run that exists is skipped.

    A run exists if its id or its fire has a row, if it is open and an open run has its unique key, or if an open run
    has the row's `guard_key` as unique key. `values`: SQL for each field of a run.
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
#: SQL for the fields that differ if a new run is written as running, as a claim would leave it. `INSERT_RUNNING_RUNS`
#: has the parameters created_at, owner, end of the lease, then rows of new runs.
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
    """Return an INSERT of one new run and the values that it binds.

    `row`: the row that `run_row` returns for a new run; the list is changed. `created_at`: the present time. Columns
    without a value are left out of the statement, which makes it measurably faster.
    """
    row[-1] = created_at  # takes the place of the guard's key
    filled = tuple([index for index, value in enumerate(row) if value is not None])
    return _insert_run_sql(filled), [row[index] for index in filled]


@cache
def _insert_run_sql(filled: tuple[int, ...]) -> str:
    """Return the INSERT of a new run whose row has values at the indexes `filled`; the last index is `created_at`'s."""
    names = [*_ROW[: _NEW_ROW_LENGTH - 1], "created_at"]
    values = dict.fromkeys([names[index] for index in filled], "?")
    for name in RUN_FIELDS[len(_CREATION_FIELDS) :]:
        if name != "created_at" and (value := _new_run_value(name)) != "NULL":
            values[name] = value
    return f"INSERT OR IGNORE INTO run ({', '.join(values)}) VALUES ({', '.join(values.values())})"  # noqa: S608


def is_new_row(row: list[Any]) -> bool:
    """Return True if a `run_row` is of a new run. Such a row is short: later fields have their defaults."""
    return len(row) == _NEW_ROW_LENGTH


def insert_runs_statement(rows: list[list[Any]]) -> tuple[str, list[list[Any]]]:
    """Return an INSERT of runs, and the rows to bind for it. `rows`: rows of `run_row`.

    Rows of new runs are short. If one of the rows is not short, the short rows are filled up with defaults, because all
    rows must be of one length. The statement's parameter before the rows is created_at.
    """
    if all(map(is_new_row, rows)):
        return INSERT_NEW_RUNS, rows
    return _INSERT_RUNS, [row if len(row) > _NEW_ROW_LENGTH else [*row, *_LIFE_DEFAULTS] for row in rows]


def run_row(run: Run, n: int, ended_at: int | None, mark: int, guard_key: str | None) -> list[Any]:
    """Return a run's row for the INSERT statements. The row of a new run is short: it ends with `guard_key`.

    `n`: the number of the run's events. `ended_at`: None for an open run. `mark`: the number for the run's column
    `mark`. `guard_key`: a unique key, or None; if an open run has this key, the INSERT skips the row.
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
    """Return rows for `INSERT_NEW_RUNS`, or None if a run has values that a new run does not have.

    `mark`: the number for the column `mark` of the runs. A run that differs from the run before it only in id and body
    gets a copy of that run's row, which is faster.
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
    """Return the value for the column `mark` in a `run_row`."""
    return cast("int", row[_AT["mark"]])


def row_n(row: list[Any]) -> int:
    """Return the `n` in a `run_row`: the number of the run's events."""
    return cast("int", row[_AT["n"]])


# ── schedules ───────────────────────────────────────────────────────────────

#: SQL for the schedule of table alias `s` as a JSON object.
SCHEDULE_JSON = (
    "json_object("
    + ", ".join(
        f"'{name}', " + ("json(s.spec)" if name == "spec" else f"s.{name}") for name in Schedule.__struct_fields__
    )
    + ")"
)
_schedules = msgspec.json.Decoder(list[Schedule])


def read_schedules(text: str) -> list[Schedule]:
    """Return the schedules in a JSON text that a query with `json_group_array` of `SCHEDULE_JSON` has returned."""
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
#: SQL for the id of an event's run: from the event itself, else from the run's first event, else from the run's row. An
#: event has the id itself if it is the first of its run, or if its run had no row when it was written.
_RUN_ID = "coalesce(e.run_ref, (SELECT b.run_ref FROM event b WHERE b.rid = e.rid AND b.n = 1), r.id)"
#: SQL for an event as a JSON array, with the table aliases `e` (event) and `r` (its run, outer-joined by rid).
EVENT_JSON = (
    "json_array(e.type, e.data, " + ", ".join(_RUN_ID if c == "run_id" else f"e.{c}" for c in _EVENT_COLUMNS) + ")"
)
_event_rows = msgspec.json.Decoder(list[list[Any]])

#: Parameter: at, then rows of `event_row`. An event with a mark is appended only if its run's row has that mark, that
#: is, if this batch wrote the row.
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
    """Return a row for `INSERT_EVENTS`. `change`: the id of the event's change; None if the store writes the event.

    For an event of a run that the change writes, `mark` is the number in the run's column `mark`, and `n` is how many
    later events of that run the change has: the statement subtracts it from the `n` in the run's row. For any other
    event, `mark` is None. Its `n` is its number among the events of its schedule, or None if it belongs to no run and
    no schedule.
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
    """Return the events in a JSON text that a query with `json_group_array` of `EVENT_JSON` has returned.

    A column that is NULL becomes the default of the event's field.
    """
    found = []
    for kind, data, *values in _event_rows.decode(text):
        columns = {name: value for name, value in zip(_EVENT_COLUMNS, values, strict=True) if value is not None}
        found.append(decode_event(kind, columns, data))
    return found
