"""Rows as JSON: one text in, one text out, whatever their number."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, cast

import msgspec
from msgspec.structs import astuple

from mainspring.model.events import Event, decode_event, encode_data
from mainspring.model.run import Run, State, alike
from mainspring.model.schedule import Schedule

_encoder = msgspec.json.Encoder()

# ── in ──────────────────────────────────────────────────────────────────────


def pack(rows: Any) -> str:
    """JSON for `json_each`. SQLite's JSON ends a text at U+0000, so that character is stored as its picture, U+2400."""
    data = _encoder.encode(rows)
    if b"\\u0000" in data:
        data = _encoder.encode(_without_nul(rows))
    return data.decode()


def plain_text(text: str | None) -> str | None:
    """The same rule for a text that is bound as it is."""
    return text if text is None or "\0" not in text else text.replace("\0", "\u2400")


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\u2400")
    if isinstance(value, list | tuple):
        return [_without_nul(item) for item in value]
    return value


#: The rows of the first parameter as table `j`, each rendered once and not again for every value taken from it.
GIVEN = "WITH j AS MATERIALIZED (SELECT value FROM json_each(?1))"


def item(index: int) -> str:
    """SQL for one value of the row that `j` is at."""
    return f"json_extract(j.value, '$[{index}]')"


#: The other way in, for what is written most: `Database.run_rows` binds every value, as `v.column1` and so on.
#: A statement has so many rows at most.
MOST_ROWS = 256
BOUND = "(VALUES %ROWS%) AS v"


@cache
def sized(template: str, width: int, rows: int) -> str:
    """The statement for so many rows."""
    row = "(" + ", ".join("?" * width) + ")"
    return template.replace("%ROWS%", ", ".join([row] * rows))


def size_for(rows: int) -> int:
    """A statement's size for so many rows, the rest of them empty: few statements to keep prepared, little in vain."""
    step = 1 << max(0, rows.bit_length() - 3)
    return -(-rows // step) * step


def bound(index: int) -> str:
    """SQL for one value of the bound row."""
    return f"v.column{index + 1}"


# ── runs ────────────────────────────────────────────────────────────────────

RUN_FIELDS = Run.__struct_fields__
#: A new run's row: what it is born with, the mark, the guard's unique key, then what only its life brings.
_BORN_WITH = RUN_FIELDS[: RUN_FIELDS.index("epoch")]
_ROW = (*_BORN_WITH, "mark", "guard_key", *RUN_FIELDS[len(_BORN_WITH) :])
_AT = {name: i for i, name in enumerate(_ROW)}
_FRESH = _AT["guard_key"] + 1
_LIFE = astuple(Run(id="", task=""))[len(_BORN_WITH) :]
_ID, _BODY = _AT["id"], _AT["body"]
_N, _STATE, _GATES, _OPTIONS = (_AT[name] for name in ("n", "state", "gates", "options"))


_AS_JSON = {"gates": "iif(r.gates IS NULL, json_array(), json(r.gates))", "options": "json(r.options)"}


def run_json(**others: str) -> str:
    """SQL: a run as one JSON array, of the table alias `r`; the named fields as said, not as they are stored."""
    values = {name: f"r.{name}" for name in RUN_FIELDS} | _AS_JSON | others
    return f"json_array({', '.join(values[name] for name in RUN_FIELDS)})"


RUN_JSON = run_json()
#: By far the quickest way from a state to its text.
STATE_TEXT = {state: str(state.value) for state in State}
#: Not strict: true is 1 in a row, and JSON's own word for it would have to be parsed.
_runs = msgspec.json.Decoder(list[Run], strict=False)


def read_runs(text: str) -> list[Run]:
    """Runs of a `json_group_array` of `RUN_JSON`."""
    return _runs.decode(text)


def _run_value(name: str) -> str:
    return "?1" if name == "created_at" else bound(_AT[name])


def _fresh_value(name: str) -> str:
    """Nothing has happened to a fresh run, so half of its values need not be sent."""
    if _AT[name] < _FRESH or name == "created_at":
        return _run_value(name)
    default = _LIFE[RUN_FIELDS.index(name) - len(_BORN_WITH)]
    return "NULL" if default is None else str(int(default))


def _insert(values: Iterable[str]) -> str:
    """created_at, rows; a run that exists, by id, fire or unique key, is passed over."""
    return f"""
INSERT OR IGNORE INTO run ({", ".join(RUN_FIELDS)}, mark)
SELECT {", ".join(values)}, {bound(_AT["mark"])} FROM {BOUND}
WHERE {bound(_AT["id"])} IS NOT NULL AND ({bound(_AT["guard_key"])} IS NULL OR NOT EXISTS (
    SELECT 1 FROM run o WHERE o.ns = {bound(_AT["ns"])} AND o.unique_key = {bound(_AT["guard_key"])}
      AND o.unique_key IS NOT NULL AND o.ended_at IS NULL))
"""  # noqa: S608 - field names, no input


_INSERT_RUNS = _insert(map(_run_value, RUN_FIELDS))
INSERT_FRESH = _insert(map(_fresh_value, RUN_FIELDS))
#: created_at, owner, lease; then fresh rows, which are written as a claim of them leaves them.
_BEGUN = {
    "state": "'running'",
    "n": "2",
    "epoch": "1",
    "attempt": "1",
    "started_at": f"max(?1, {bound(_AT['ready_at'])})",
    "owner": "?2",
    "lease_until": "?3",
}
INSERT_BEGUN = _insert(_BEGUN.get(name) or _fresh_value(name) for name in RUN_FIELDS)


def insert_run(row: list[Any], created_at: int) -> tuple[str, list[Any]]:
    """The statement for a single fresh row, and its values: what is empty is not even named, which SQLite thanks."""
    row[-1] = created_at  # in the place of the guard's key
    given = tuple([index for index, value in enumerate(row) if value is not None])
    return _insert_given(given), [row[index] for index in given]


@cache
def _insert_given(given: tuple[int, ...]) -> str:
    names = [*_ROW[: _FRESH - 1], "created_at"]
    values = dict.fromkeys([names[index] for index in given], "?")
    for name in RUN_FIELDS[len(_BORN_WITH) :]:
        if name != "created_at" and (value := _fresh_value(name)) != "NULL":
            values[name] = value
    return f"INSERT OR IGNORE INTO run ({', '.join(values)}) VALUES ({', '.join(values.values())})"  # noqa: S608


def is_fresh(row: list[Any]) -> bool:
    """True for a `run_row` to which nothing has happened."""
    return len(row) == _FRESH


def insert_runs(rows: list[list[Any]]) -> tuple[str, list[list[Any]]]:
    """The statement for these rows, and the rows; `created_at` comes before them."""
    if all(map(is_fresh, rows)):
        return INSERT_FRESH, rows
    return _INSERT_RUNS, [row if len(row) > _FRESH else [*row, *_LIFE] for row in rows]


def run_row(run: Run, n: int, ended_at: int | None, mark: int, guard_key: str | None) -> list[Any]:
    """A row for `insert_runs`."""
    values = astuple(run)
    row = [*values[: len(_BORN_WITH)], mark, guard_key]
    row[_N] = n
    row[_STATE] = STATE_TEXT[run.state]
    row[_GATES] = _encoder.encode(run.gates).decode() if run.gates else None
    if run.options is not None:
        row[_OPTIONS] = _encoder.encode(run.options).decode()
    life = values[len(_BORN_WITH) :]
    if ended_at is not None or life != _LIFE:
        row += life
        row[_AT["ended_at"]] = ended_at
    return row


def fresh_rows(runs: Iterable[Run], mark: int) -> list[list[Any]] | None:
    """Rows for `INSERT_FRESH`, or None when one is not fresh; of runs that are alike the others copy the first's."""
    rows: list[list[Any]] = []
    model: Run | None = None
    for run in runs:
        if model is not None and alike(run, model):
            row = rows[-1].copy()
            row[_ID], row[_BODY] = run.id, run.body
        else:
            model, row = run, run_row(run, 1, None, mark, None)
            if not is_fresh(row):
                return None
        rows.append(row)
    return rows


def mark_of(row: list[Any]) -> int:
    """The mark of a `run_row`."""
    return cast("int", row[_AT["mark"]])


def moves_of(row: list[Any]) -> int:
    """The number a `run_row`'s stream begins at."""
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
    """Schedules of a `json_group_array` of `SCHEDULE_JSON`."""
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
#: The id of an event's run: the log's own word for it (at birth), the row's only where that is gone.
_RUN_ID = "coalesce(e.run_ref, (SELECT b.run_ref FROM event b WHERE b.rid = e.rid AND b.n = 1), r.id)"
#: An event as one JSON array, of the aliases `e` (event) and `r` (its run, outer-joined by rid).
EVENT_JSON = (
    "json_array(e.type, e.data, " + ", ".join(_RUN_ID if c == "run_id" else f"e.{c}" for c in _EVENT_COLUMNS) + ")"
)
_event_rows = msgspec.json.Decoder(list[list[Any]])

#: Events to append: run moves only of runs that this batch wrote (their mark says so), the rest as they come.
INSERT_EVENTS = f"""
INSERT INTO event (at, ns, schedule_id, rid, run_ref, n, type, v, actor, change, epoch, attempt, owner, data)
SELECT ?1, {bound(2)}, {bound(3)}, r.rid,
       CASE WHEN r.rid IS NULL OR ({bound(1)} IS NOT NULL AND r.n - {bound(4)} = 1) THEN {bound(0)} END,
       CASE WHEN {bound(1)} IS NULL THEN {bound(4)} ELSE r.n - {bound(4)} END,
       {", ".join(map(bound, range(5, 13)))}
FROM {BOUND} LEFT JOIN run r ON r.id = {bound(0)}
WHERE {bound(5)} IS NOT NULL AND ({bound(1)} IS NULL OR r.mark = {bound(1)})
"""  # noqa: S608 - positions, no input


def event_row(event: Event, change: str | None, mark: int | None, n: int | None) -> list[Any]:
    """A row for `INSERT_EVENTS`; with a mark, `n` counts back from the run's own number."""
    return [
        event.run_id,
        mark,
        event.ns,
        event.schedule_id,
        n,
        type(event).__name__,
        event.v,
        plain_text(event.actor),
        change,
        event.epoch,
        event.attempt,
        event.owner,
        encode_data(event),
    ]


def read_events(text: str) -> list[Event]:
    """Events of a `json_group_array` of `EVENT_JSON`; absent columns are left to the event's defaults."""
    found = []
    for kind, data, *values in _event_rows.decode(text):
        columns = {name: value for name, value in zip(_EVENT_COLUMNS, values, strict=True) if value is not None}
        found.append(decode_event(kind, columns, data))
    return found
