"""The statement that writes new runs with the events of their birth, made for the batch that is at hand.

What is the same for a whole batch is bound once; only what differs comes as one array a column. A batch of one needs no
array at all, and one without payloads does not ask for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from mainspring.stores.postgres.apply_sql import bodies_given
from mainspring.stores.postgres.rows import FRESH_COLUMNS, FRESH_VALUES, NOW, RUN_FIELDS

#: A fresh run and the event of its birth, which says the rest.
BIRTH_COLUMNS = {**FRESH_COLUMNS, "actor": "text", "change": "text", "data": "text"}
_NAMES = tuple(BIRTH_COLUMNS)


def bind(rows: Sequence[Sequence[Any]], bodies: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    """The statement for these rows of `BIRTH_COLUMNS` and `BODY_COLUMNS`, and what to bind to it after the time."""
    columns = list(zip(*rows, strict=True))
    count = len(rows)
    varying = tuple(i for i, column in enumerate(columns) if column.count(column[0]) < count) if count > 1 else ()
    chosen = set(varying)
    values = [columns[i] if i in chosen else columns[i][0] for i in range(len(columns))]
    parameters = [*values, *zip(*bodies, strict=True)] if bodies else values
    return statement(varying, bool(bodies)), parameters


@lru_cache(maxsize=256)
def statement(varying: tuple[int, ...], with_bodies: bool) -> str:
    """SQL: now, then births, of which these columns are arrays → the time, how many, and which if not all are new."""
    place = {name: f"${2 + i}::{kind}" for i, (name, kind) in enumerate(BIRTH_COLUMNS.items())}
    arrays = [_NAMES[i] for i in varying]
    for name in arrays:
        place[name] = f"i.{name}"
    rows = "(SELECT 1 AS ord) i"
    if arrays:
        slots = ", ".join(f"${2 + i}::{BIRTH_COLUMNS[_NAMES[i]]}[]" for i in varying)
        rows = f"unnest({slots}) WITH ORDINALITY AS i({', '.join(arrays)}, ord)"
    fresh = ", ".join(place.get(value.removeprefix("i."), value) for value in FRESH_VALUES)
    bodies = ""
    if with_bodies:
        only = "WHERE (i.id IN (SELECT r.body FROM r)) IS TRUE"
        bodies = f"{bodies_given(2 + len(_NAMES), only)},"
    order = "ORDER BY i.ord" if arrays else ""
    # `IS TRUE` keeps the questions hashed look-ups: as joins they would go row by row.
    return f"""
WITH t AS MATERIALIZED (SELECT {NOW} AS now),
i AS MATERIALIZED (SELECT * FROM {rows}),
r AS (
    INSERT INTO §run ({", ".join(RUN_FIELDS)}) SELECT {fresh} FROM i {order} ON CONFLICT DO NOTHING RETURNING id, body),
{bodies}
e AS (
    INSERT INTO §event (at, ns, schedule_id, run_id, n, type, v, actor, change, data)
    SELECT t.now, {place["ns"]}, {place["schedule_id"]}, {place["id"]}, 1, 'RunScheduled', 1,
           {place["actor"]}, {place["change"]}, {place["data"]}
    FROM t, i WHERE ({place["id"]} IN (SELECT r.id FROM r)) IS TRUE {order})
SELECT t.now, n.got, CASE WHEN n.got < (SELECT count(*) FROM i) THEN (SELECT array_agg(r.id) FROM r) END AS ids
FROM t, (SELECT count(*) AS got FROM r) n
"""  # noqa: S608 - column names, no input


#: Every column an array, with payloads: how the widest of them looks.
WIDEST = statement(tuple(range(len(_NAMES))), True)
