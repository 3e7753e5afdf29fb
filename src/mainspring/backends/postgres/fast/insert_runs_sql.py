"""One SQL statement that inserts new runs with their payloads and events, and advances the schedules that fired.

A column whose value is equal in all rows is sent as one value, and any other column as an array. So a single run needs
no array. Without payloads, the statement does not name their table; without schedules to advance, it does not name the
table of schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from mainspring.backends.postgres.apply_sql import insert_bodies_ctes
from mainspring.backends.postgres.rows import (
    FRESH_COLUMNS,
    FRESH_VALUES,
    INSERT_ORDER,
    NOW_SQL,
    RUN_FIELDS,
    SCHEDULE_VALUES,
    column_arrays,
    unnest_columns,
)

#: The columns of a fresh run, then those of its `RunScheduled` event that the run does not have.
INSERTED_RUN_COLUMNS = {**FRESH_COLUMNS, "actor": "text", "change": "text", "data": "text"}
#: Columns of a schedule's planning position, which an advance sets. An advance does not change the definition.
_POSITION = {
    name: SCHEDULE_VALUES[name] for name in ("state", "anchor", "cursor", "next_at", "fired", "reason", "until")
}
POSITION_FIELDS = tuple(_POSITION)
#: `idx` is the index of the change in the batch; the columns `at_…` have the values that the caller of `apply` read
#: before.
ADVANCE_COLUMNS = {
    "idx": "integer",
    "id": "text",
    **_POSITION,
    "at_revision": "integer",
    "at_cursor": "bigint",
    "at_n": "integer",
    "at_touched": "integer",
}
#: With schedules to advance, a row of a run also has the `idx` of its schedule's change, as `plan`.
_COLUMNS = {**INSERTED_RUN_COLUMNS, "plan": "integer"}
_COLUMN_NAMES = tuple(_COLUMNS)
_COLUMN_COUNT_WITHOUT_PLAN = len(INSERTED_RUN_COLUMNS)


def bind(
    rows: Sequence[Sequence[Any]], bodies: Sequence[Sequence[Any]], advances: Sequence[Sequence[Any]] = ()
) -> tuple[str, list[Any]]:
    """Return the statement that writes new runs, payloads and schedule advances, and its parameters after `now`.

    `rows`: INSERTED_RUN_COLUMNS of the runs, one row at least; with `advances`, each row has one column more, the `idx`
    of the run's advance. `bodies`: payloads as (id, data). `advances`: new planning positions of schedules, rows of
    ADVANCE_COLUMNS.
    """
    columns = list(zip(*rows, strict=True))
    count = len(rows)
    varying = tuple(i for i, column in enumerate(columns) if column.count(column[0]) < count) if count > 1 else ()
    chosen = set(varying)
    parameters: list[Any] = [column if i in chosen else column[0] for i, column in enumerate(columns)]
    if bodies:
        parameters += zip(*bodies, strict=True)
    if advances:
        parameters += column_arrays(advances, len(ADVANCE_COLUMNS))
    return statement(varying, with_bodies=bool(bodies), with_advances=bool(advances)), parameters


@lru_cache(maxsize=256)
def statement(varying: tuple[int, ...], *, with_bodies: bool = False, with_advances: bool = False) -> str:
    """Return SQL that inserts new runs and, if wanted, payloads and schedule advances.

    Its parameters: now, columns of runs, then columns of payloads and of advances (new planning positions of
    schedules). `varying`: the indexes of the run columns that are sent as arrays; of any other column, one value is
    sent for all rows.

    Without advances, the statement returns the instant, how many runs were inserted (`got`), and their `ids`, NULL if
    all were inserted. With advances, it returns the instant, and as `held` the `idx` of each schedule that was as the
    caller read it. Then only the runs of these schedules are inserted.
    """
    names = _COLUMN_NAMES if with_advances else _COLUMN_NAMES[:_COLUMN_COUNT_WITHOUT_PLAN]
    value_of = {name: f"${2 + i}::{_COLUMNS[name]}" for i, name in enumerate(names)}
    value_of |= {names[i]: f"i.{names[i]}" for i in varying}
    rows = "(SELECT 1 AS ord) i"
    if varying:
        slots = ", ".join(f"${2 + i}::{_COLUMNS[names[i]]}[]" for i in varying)
        rows = f"unnest({slots}) WITH ORDINALITY AS i({', '.join(names[i] for i in varying)}, ord)"
    fresh = ", ".join(value_of[value[2:]] if value.startswith("i.") else value for value in FRESH_VALUES)
    order = "ORDER BY i.ord" if varying else ""
    has_keys = value_of["unique_key"] == "i.unique_key"
    key_order = INSERT_ORDER if has_keys else order
    before, only, after = "", "", ""
    # `IS TRUE` makes the query planner use hashed look-ups: it would run plain `IN` conditions as joins, row by row.
    answer = """n.got, CASE WHEN n.got < (SELECT count(*) FROM i) THEN (SELECT array_agg(r.id) FROM r) END AS ids
FROM t, (SELECT count(*) AS got FROM r) n"""
    if with_bodies:
        after = insert_bodies_ctes(2 + len(names), "WHERE (i.id IN (SELECT r.body FROM r)) IS TRUE") + ","  # noqa: S608
    if with_advances:
        before = f"m AS ({_advance_sql(2 + len(names) + 2 * with_bodies)}),"
        only = f"WHERE ({value_of['plan']} IN (SELECT m.idx FROM m)) IS TRUE"  # noqa: S608
        answer = "(SELECT array_agg(m.idx) FROM m) AS held FROM t"
    return f"""
WITH t AS MATERIALIZED (SELECT {NOW_SQL} AS now),{before}
i AS MATERIALIZED (SELECT * FROM {rows}),
r AS (
    INSERT INTO §run ({", ".join(RUN_FIELDS)}) SELECT {fresh} FROM i {only} {key_order}
    ON CONFLICT DO NOTHING RETURNING id, body),{after}
e AS (
    INSERT INTO §event (at, ns, schedule_id, run_id, n, type, v, actor, change, data)
    SELECT t.now, {value_of["ns"]}, {value_of["schedule_id"]}, {value_of["id"]}, 1, 'RunScheduled', 1,
           {value_of["actor"]}, {value_of["change"]}, {value_of["data"]}
    FROM t, i WHERE ({value_of["id"]} IN (SELECT r.id FROM r)) IS TRUE {order})
SELECT t.now, {answer}
"""  # noqa: S608 - column names, no input


def _advance_sql(first: int) -> str:
    """Return SQL that advances the schedules that are as the caller read them, and returns the `idx` of each of them.

    To advance a schedule is to set its planning position, POSITION_FIELDS. The parameters are ADVANCE_COLUMNS, from the
    number `first` on.
    """
    return f"""
    UPDATE §schedule s SET {", ".join(f"{name} = i.{name}" for name in POSITION_FIELDS)}, held_until = 0,
        touched = CASE WHEN s.touched = i.at_touched THEN 0 ELSE s.touched END
    FROM {unnest_columns(ADVANCE_COLUMNS, first)}
    WHERE s.id = i.id AND s.revision = i.at_revision AND s.cursor = i.at_cursor AND s.n = i.at_n
    RETURNING i.idx"""  # noqa: S608


#: Parameters: now, ADVANCE_COLUMNS. Advances schedules whose changes insert no runs. Returns the instant, and as `held`
#: the `idx` of each schedule that was as the caller read it, NULL if there are none.
ADVANCE_SCHEDULES = f"""
WITH t AS MATERIALIZED (SELECT {NOW_SQL} AS now), m AS ({_advance_sql(2)})
SELECT t.now, (SELECT array_agg(m.idx) FROM m) AS held FROM t
"""  # noqa: S608
