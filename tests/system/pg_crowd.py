"""A crowd of rows in a PostgreSQL store, and what the store's statements cost the server beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec import Struct

from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import Session

#: Seconds that filling a table may take.
LONG = 1_800.0
#: Ids that grow with `g`, so that an index over them grows at its end as it does in life.
GROWING_ID = "'10000000-0000-7000-8000-' || lpad(to_hex(g), 12, '0')"


class Cost(Struct):
    """What the server did: pages looked at, rows looked at, statements."""

    pages: int = 0
    rows: int = 0
    statements: int = 0
    #: The statement that looked at the most rows.
    worst: str = ""
    worst_rows: int = 0


async def multiply(store: PostgresStore, table: str, where: str, first: int, last: int, **values: str) -> None:
    """Copy the rows `where` for each `g` from first to last, with other values (SQL) in some columns."""
    connection = await store._db.connect(unhurried=True)
    try:
        names = [row[0] for row in await connection.fetch(_COLUMNS, store.settings.schema, table)]
        picked = ", ".join(values.get(name, f"o.{name}") for name in names)
        await connection.execute(
            store._db.place(
                f"INSERT INTO §{table} ({', '.join(names)}) SELECT {picked} "
                f"FROM generate_series({first}, {last}) g, §{table} o WHERE {where} ORDER BY g, o.n"
            ),
            timeout=LONG,
        )
    finally:
        await connection.close()


#: Those that are not numbered by the table itself.
_COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = $1 AND table_name = $2 AND is_identity = 'NO' ORDER BY ordinal_position
"""


async def run_sql(store: PostgresStore, sql: str) -> list[Any]:
    """A statement of the test's own, which may take its time."""
    connection = await store._db.connect(unhurried=True)
    try:
        rows: list[Any] = await connection.fetch(store._db.place(sql), timeout=LONG)
        return rows
    finally:
        await connection.close()


async def settled(store: PostgresStore, *tables: str) -> None:
    """What autovacuum does sooner or later, now: the same for the few and for the many."""
    for table in tables:
        await run_sql(store, f"VACUUM ANALYZE §{table}")


async def swept(store: PostgresStore, *tables: str) -> None:
    """`settled`, until no dead row stays.

    Once is not always enough: rows that somebody's snapshot may still see stay, and so do those of a page that the
    checkpointer is just writing.
    """
    async with asyncio.timeout(60):
        for table in tables:
            await settled(store, table)
            while left := await run_sql(store, _DEAD.format(schema=store.settings.schema, table=table)):
                print(f"{left[0][0]} dead rows stay in {table}: again")
                await asyncio.sleep(0.05)
                await settled(store, table)


_DEAD = """
SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = '{schema}' AND relname = '{table}' AND n_dead_tup > 0
"""


@contextlib.asynccontextmanager
async def weighed(patch: pytest.MonkeyPatch) -> AsyncIterator[Cost]:
    """Everything any store says meanwhile is weighed first: run under EXPLAIN ANALYZE, undone, then done."""
    cost = Cost()
    plain = {name: getattr(Session, name) for name in ("fetch", "row", "value")}

    def weighing(name: str) -> Callable[..., Awaitable[Any]]:
        async def call(self: Session, sql: str, *parameters: Any) -> Any:
            if "pg_notify" not in sql:  # a hint, which goes by itself when it likes
                await _weigh(self, sql, parameters, cost)
            return await plain[name](self, sql, *parameters)

        return call

    with patch.context() as inner:
        for name in plain:
            inner.setattr(Session, name, weighing(name))
        yield cost


async def _weigh(session: Session, sql: str, parameters: tuple[Any, ...], cost: Cost) -> None:
    connection = session.connection
    inside = connection.is_in_transaction()
    await connection.execute("SAVEPOINT weighing" if inside else "BEGIN")
    words = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {session._place(sql)}"
    (plan,) = json.loads(await connection.fetchval(words, *parameters))
    await connection.execute("ROLLBACK TO weighing; RELEASE weighing" if inside else "ROLLBACK")
    cost.statements += 1
    # What no other part reads is done after the top of the plan, so its pages are not among the top's.
    cost.pages += _pages(plan["Plan"]) + sum(_pages(part) for part in _unread(plan["Plan"]))
    rows = _rows(plan["Plan"])
    cost.rows += rows
    if rows > cost.worst_rows:
        cost.worst, cost.worst_rows = sql, rows


def _pages(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"])


def _unread(plan: dict[str, Any]) -> list[dict[str, Any]]:
    parts = {node["Subplan Name"]: node for node in plan.get("Plans", ()) if node["Node Type"] == "ModifyTable"}
    read = {f"CTE {node['CTE Name']}" for node in _nodes(plan) if "CTE Name" in node}
    return [node for name, node in parts.items() if name not in read]


def _rows(plan: dict[str, Any]) -> int:
    found = 0.0
    for node in _nodes(plan):
        if "Relation Name" in node and node["Node Type"] != "ModifyTable":
            removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            found += (node["Actual Rows"] + removed) * node["Actual Loops"]
    return round(found)


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(found for part in plan.get("Plans", ()) for found in _nodes(part))]


class Times:
    """How long calls took, in milliseconds."""

    def __init__(self) -> None:
        self.ms: list[float] = []

    @contextlib.contextmanager
    def one(self) -> Any:
        began = time.perf_counter()
        yield
        self.ms.append((time.perf_counter() - began) * 1000)

    def at(self, share: float) -> float:
        """The time that this share of the calls kept to."""
        ordered = sorted(self.ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    def __str__(self) -> str:
        return f"p50 {self.at(0.5):.1f} ms, p99 {self.at(0.99):.1f} ms, worst {max(self.ms):.1f} ms of {len(self.ms)}"
