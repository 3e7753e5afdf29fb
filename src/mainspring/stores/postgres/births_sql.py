"""The statement that writes new runs with the events of their birth, and the plans they come from, in one.

What is the same for a whole batch is bound once; only what differs comes as one array a column. A batch of one needs no
array at all, and one without payloads does not ask for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from mainspring.stores.postgres.apply_sql import bodies_given
from mainspring.stores.postgres.rows import FRESH_COLUMNS, FRESH_VALUES, NOW, RUN_FIELDS, SCHEDULE_VALUES, arrays, given

#: A fresh run and the event of its birth, which says the rest.
BIRTH_COLUMNS = {**FRESH_COLUMNS, "actor": "text", "change": "text", "data": "text"}
#: Where planning leaves a schedule, and where it found it; the definition stays as it is.
_POSITION = {
    name: SCHEDULE_VALUES[name] for name in ("state", "anchor", "cursor", "next_at", "fired", "reason", "until")
}
POSITION = tuple(_POSITION)
PLAN_COLUMNS = {
    "idx": "integer",
    "id": "text",
    **_POSITION,
    "at_revision": "integer",
    "at_cursor": "bigint",
    "at_n": "integer",
    "at_touched": "integer",
}
#: With plans, which of them a birth belongs to.
_COLUMNS = {**BIRTH_COLUMNS, "plan": "integer"}
_NAMES = tuple(_COLUMNS)
_WIDTH = len(BIRTH_COLUMNS)


def bind(
    rows: Sequence[Sequence[Any]], bodies: Sequence[Sequence[Any]], plans: Sequence[Sequence[Any]] = ()
) -> tuple[str, list[Any]]:
    """The statement for these births, payloads and plans, and what to bind to it after the time.

    Births are rows of `BIRTH_COLUMNS`, with plans one column more: the `idx` of theirs.
    """
    columns = list(zip(*rows, strict=True))
    count = len(rows)
    varying = tuple(i for i, column in enumerate(columns) if column.count(column[0]) < count) if count > 1 else ()
    chosen = set(varying)
    parameters: list[Any] = [column if i in chosen else column[0] for i, column in enumerate(columns)]
    if bodies:
        parameters += zip(*bodies, strict=True)
    if plans:
        parameters += arrays(plans, len(PLAN_COLUMNS))
    return statement(varying, with_bodies=bool(bodies), with_plans=bool(plans)), parameters


@lru_cache(maxsize=256)
def statement(varying: tuple[int, ...], *, with_bodies: bool = False, with_plans: bool = False) -> str:
    """SQL: now, then births, of which these columns are arrays → the time, how many, and which if not all are new.

    With plans → the time, and the `idx` of those whose schedule was where it was seen; a birth needs its plan to be.
    """
    names = _NAMES if with_plans else _NAMES[:_WIDTH]
    place = {name: f"${2 + i}::{_COLUMNS[name]}" for i, name in enumerate(names)}
    place |= {names[i]: f"i.{names[i]}" for i in varying}
    rows = "(SELECT 1 AS ord) i"
    if varying:
        slots = ", ".join(f"${2 + i}::{_COLUMNS[names[i]]}[]" for i in varying)
        rows = f"unnest({slots}) WITH ORDINALITY AS i({', '.join(names[i] for i in varying)}, ord)"
    fresh = ", ".join(place[value[2:]] if value.startswith("i.") else value for value in FRESH_VALUES)
    order = "ORDER BY i.ord" if varying else ""
    before, only, after = "", "", ""
    # `IS TRUE` keeps the questions hashed look-ups: as joins they would go row by row.
    answer = """n.got, CASE WHEN n.got < (SELECT count(*) FROM i) THEN (SELECT array_agg(r.id) FROM r) END AS ids
FROM t, (SELECT count(*) AS got FROM r) n"""
    if with_bodies:
        after = bodies_given(2 + len(names), "WHERE (i.id IN (SELECT r.body FROM r)) IS TRUE") + ","  # noqa: S608
    if with_plans:
        before = f"m AS ({_plan(2 + len(names) + 2 * with_bodies)}),"
        only = f"WHERE ({place['plan']} IN (SELECT m.idx FROM m)) IS TRUE"  # noqa: S608
        answer = "(SELECT array_agg(m.idx) FROM m) AS held FROM t"
    return f"""
WITH t AS MATERIALIZED (SELECT {NOW} AS now),{before}
i AS MATERIALIZED (SELECT * FROM {rows}),
r AS (
    INSERT INTO §run ({", ".join(RUN_FIELDS)}) SELECT {fresh} FROM i {only} {order}
    ON CONFLICT DO NOTHING RETURNING id, body),{after}
e AS (
    INSERT INTO §event (at, ns, schedule_id, run_id, n, type, v, actor, change, data)
    SELECT t.now, {place["ns"]}, {place["schedule_id"]}, {place["id"]}, 1, 'RunScheduled', 1,
           {place["actor"]}, {place["change"]}, {place["data"]}
    FROM t, i WHERE ({place["id"]} IN (SELECT r.id FROM r)) IS TRUE {order})
SELECT t.now, {answer}
"""  # noqa: S608 - column names, no input


def _plan(first: int) -> str:
    """SQL: schedules move on, in the order of ids, if they are where the caller saw them."""
    return f"""
    UPDATE §schedule s SET {", ".join(f"{name} = i.{name}" for name in POSITION)}, held_until = 0,
        touched = CASE WHEN s.touched = i.at_touched THEN 0 ELSE s.touched END
    FROM {given(PLAN_COLUMNS, first)}
    WHERE s.id = i.id AND s.revision = i.at_revision AND s.cursor = i.at_cursor AND s.n = i.at_n
    RETURNING i.idx"""  # noqa: S608


#: now, then `PLAN_COLUMNS`: plans without a birth.
PLAN = f"""
WITH t AS MATERIALIZED (SELECT {NOW} AS now), m AS ({_plan(2)})
SELECT t.now, (SELECT array_agg(m.idx) FROM m) AS held FROM t
"""  # noqa: S608
