"""Rows as JSON: one text in, one text out, whatever their number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast, get_type_hints

import msgspec
from msgspec.structs import astuple

from mainspring.model.events import Event, decode_event, encode_data
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule

_encoder = msgspec.json.Encoder()

# ── in ──────────────────────────────────────────────────────────────────────


def pack(rows: Any) -> str:
    """JSON for `json_each`. SQLite's JSON ends a text at U+0000, so that character is stored as its picture, U+2400."""
    data = _encoder.encode(rows)
    if b"\\u0000" in data:
        data = _encoder.encode(_without_nul(rows))
    return data.decode()


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


# ── runs ────────────────────────────────────────────────────────────────────

RUN_FIELDS = Run.__struct_fields__
#: A new run's row: what it is born with, the mark, the guard's unique key, then what only its life brings.
_BORN_WITH = RUN_FIELDS[: RUN_FIELDS.index("epoch")]
_ROW = (*_BORN_WITH, "mark", "guard_key", *RUN_FIELDS[len(_BORN_WITH) :])
_AT = {name: i for i, name in enumerate(_ROW)}
_FRESH = _AT["guard_key"] + 1
_LIFE = astuple(Run(id="", task=""))[len(_BORN_WITH) :]


def _run_column(name: str) -> str:
    if name == "gates":
        return "json(ifnull(r.gates, '[]'))"
    return "json(r.options)" if name == "options" else f"r.{name}"


#: A run as one JSON array, of the table alias `r`.
RUN_JSON = f"json_array({', '.join(map(_run_column, RUN_FIELDS))})"


def _run_value(name: str) -> str:
    if name == "created_at":
        return "?2"
    return f"nullif({item(_AT[name])}, '[]')" if name == "gates" else item(_AT[name])


def _fresh_value(name: str) -> str:
    """Nothing has happened to a fresh run, so half of its values need not be sent."""
    if _AT[name] < _FRESH or name == "created_at":
        return _run_value(name)
    default = _LIFE[RUN_FIELDS.index(name) - len(_BORN_WITH)]
    return "NULL" if default is None else str(int(default))


def _insert(values: Iterable[str]) -> str:
    """rows, created_at; a run that exists, by id, fire or unique key, is passed over."""
    return f"""
{GIVEN}
INSERT OR IGNORE INTO run ({", ".join(RUN_FIELDS)}, mark)
SELECT {", ".join(values)}, {item(_AT["mark"])} FROM j
WHERE {item(_AT["guard_key"])} IS NULL OR NOT EXISTS (
    SELECT 1 FROM run o WHERE o.ns = {item(_AT["ns"])} AND o.unique_key = {item(_AT["guard_key"])}
      AND o.unique_key IS NOT NULL AND o.ended_at IS NULL)
"""  # noqa: S608 - field names, no input


_INSERT_RUNS = _insert(map(_run_value, RUN_FIELDS))
_INSERT_FRESH = _insert(map(_fresh_value, RUN_FIELDS))


def insert_runs(rows: list[list[Any]]) -> tuple[str, str]:
    """The statement for these rows and its first parameter; the second is the instant."""
    if all(len(row) == _FRESH for row in rows):
        return _INSERT_FRESH, pack(rows)
    return _INSERT_RUNS, pack([row if len(row) > _FRESH else [*row, *_LIFE] for row in rows])


def run_row(run: Run, n: int, ended_at: int | None, mark: int, guard_key: str | None) -> list[Any]:
    """A row for `insert_runs`."""
    values = astuple(run)
    row = [*values[: len(_BORN_WITH)], mark, guard_key]
    row[_AT["n"]] = n
    life = values[len(_BORN_WITH) :]
    if ended_at is not None or life != _LIFE:
        row += life
        row[_AT["ended_at"]] = ended_at
    return row


def mark_of(row: list[Any]) -> int:
    """The mark of a `run_row`."""
    return cast("int", row[_AT["mark"]])


def moves_of(row: list[Any]) -> int:
    """The number a `run_row`'s stream begins at."""
    return cast("int", row[_AT["n"]])


def _list_of(kind: Any) -> Any:
    return list.__class_getitem__(kind)


def _tuple(kinds: list[Any]) -> Any:
    return tuple.__class_getitem__(tuple(kinds))


def _tuple_of(kind: type, fields: tuple[str, ...]) -> Any:
    """The positional type of a row; SQLite has no booleans, so they come as numbers."""
    hints = get_type_hints(kind)
    return _tuple([int if hints[name] is bool else hints[name] for name in fields])


_RunRow = _tuple_of(Run, RUN_FIELDS)
_run_rows: msgspec.json.Decoder[list[tuple[Any, ...]]] = msgspec.json.Decoder(_list_of(_RunRow))


def read_runs(text: str) -> list[Run]:
    """Runs of a `json_group_array` of `RUN_JSON`."""
    return [_run(row) for row in _run_rows.decode(text)]


def _run(row: tuple[Any, ...]) -> Run:
    # Written out because every claim passes here; a test compares it with the fields.
    return Run(
        id=row[0],
        ns=row[1],
        schedule_id=row[2],
        task=row[3],
        origin=row[4],
        fire_time=row[5],
        fire_key=row[6],
        revision=row[7],
        catch_up=row[8] == 1,
        lane=row[9],
        priority=row[10],
        gates=row[11],
        unique_key=row[12],
        body=row[13],
        options=row[14],
        state=row[15],
        n=row[16],
        due_at=row[17],
        ready_at=row[18],
        epoch=row[19],
        attempt=row[20],
        failures=row[21],
        crashes=row[22],
        cancel=row[23],
        reason=row[24],
        result=row[25],
        error=row[26],
        began_at=row[27],
        ms=row[28],
        created_at=row[29],
        started_at=row[30],
        ended_at=row[31],
        dead=row[32] == 1,
        owner=row[33],
        lease_until=row[34],
        parked_on=row[35],
        progress=row[36],
    )


# ── schedules ───────────────────────────────────────────────────────────────

SCHEDULE_FIELDS = Schedule.__struct_fields__
SCHEDULE_AT = {name: i for i, name in enumerate(SCHEDULE_FIELDS)}
#: A schedule as one JSON array, of the table alias `s`.
SCHEDULE_JSON = f"json_array({', '.join('json(s.spec)' if f == 'spec' else f's.{f}' for f in SCHEDULE_FIELDS)})"
_ScheduleRow = _tuple_of(Schedule, SCHEDULE_FIELDS)
_schedule_rows: msgspec.json.Decoder[list[tuple[Any, ...]]] = msgspec.json.Decoder(_list_of(_ScheduleRow))
_due_rows: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(
    _list_of(_tuple([_ScheduleRow, int, int, int, _list_of(_RunRow)]))
)


def read_schedules(text: str) -> list[Schedule]:
    """Schedules of a `json_group_array` of `SCHEDULE_JSON`."""
    return [Schedule(**dict(zip(SCHEDULE_FIELDS, row, strict=True))) for row in _schedule_rows.decode(text)]


def read_due(text: str) -> list[tuple[Schedule, int, int, int, tuple[Run, ...]]]:
    """Schedules with open, waiting, touched and their oldest open runs."""
    return [
        (Schedule(**dict(zip(SCHEDULE_FIELDS, row, strict=True))), opened, waiting, touched, tuple(map(_run, oldest)))
        for row, opened, waiting, touched, oldest in _due_rows.decode(text)
    ]


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
#: An event as one JSON array, of the aliases `e` (event) and `r` (its run, outer-joined by rid).
EVENT_JSON = (
    "json_array(e.type, e.data, "
    + ", ".join("ifnull(r.id, e.run_ref)" if c == "run_id" else f"e.{c}" for c in _EVENT_COLUMNS)
    + ")"
)
_event_rows = msgspec.json.Decoder(list[list[Any]])

#: Events to append: run moves only of runs that this batch wrote (their mark says so), the rest as they come.
INSERT_EVENTS = f"""
{GIVEN}
INSERT INTO event (at, ns, schedule_id, rid, run_ref, n, type, v, actor, change, epoch, attempt, owner, data)
SELECT ?2, {item(2)}, {item(3)}, r.rid, CASE WHEN r.rid IS NULL THEN {item(0)} END,
       CASE WHEN {item(1)} IS NULL THEN {item(4)} ELSE r.n - {item(4)} END,
       {", ".join(map(item, range(5, 13)))}
FROM j LEFT JOIN run r ON r.id = {item(0)}
WHERE {item(1)} IS NULL OR r.mark = {item(1)}
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
        event.actor,
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
