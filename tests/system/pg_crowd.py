"""Helpers that fill a PostgreSQL store with many rows and measure the cost of its statements."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec import Struct

from mainspring.backends.postgres import PostgresStore
from mainspring.backends.postgres.database import Session

#: Seconds that filling a table may take.
FILL_SECONDS = 1_800.0
#: Ids that grow with `g`, so that an index over them grows at its end as it does in life.
GROWING_ID = "'10000000-0000-7000-8000-' || lpad(to_hex(g), 12, '0')"


class Cost(Struct):
    """The work of the server: pages and rows read, and the number of statements."""

    pages: int = 0
    rows: int = 0
    statements: int = 0
    #: The statement that read the most rows.
    worst: str = ""
    worst_rows: int = 0


async def multiply(store: PostgresStore, table: str, where: str, first: int, last: int, **values: str) -> None:
    """Copy the rows `where` for each `g` from first to last, with other values (SQL) in some columns."""
    connection = await store._db.connect(no_time_limit=True)
    try:
        names = [row[0] for row in await connection.fetch(_COLUMNS, store.settings.schema, table)]
        picked = ", ".join(values.get(name, f"o.{name}") for name in names)
        await connection.execute(
            store._db.qualify(
                f"INSERT INTO §{table} ({', '.join(names)}) SELECT {picked} "
                f"FROM generate_series({first}, {last}) g, §{table} o WHERE {where} ORDER BY g, o.n"
            ),
            timeout=FILL_SECONDS,
        )
    finally:
        await connection.close()


#: Columns of a table except identity columns.
_COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = $1 AND table_name = $2 AND is_identity = 'NO' ORDER BY ordinal_position
"""


async def run_sql(store: PostgresStore, sql: str) -> list[Any]:
    """Run a statement of the test without a time limit; return its rows."""
    connection = await store._db.connect(no_time_limit=True)
    try:
        rows: list[Any] = await connection.fetch(store._db.qualify(sql), timeout=FILL_SECONDS)
        return rows
    finally:
        await connection.close()


async def vacuum_tables(store: PostgresStore, *tables: str) -> None:
    """Vacuum and analyze tables now, so that small and large stores are compared in the same state."""
    for table in tables:
        await run_sql(store, f"VACUUM ANALYZE §{table}")


async def vacuum_until_clean(store: PostgresStore, *tables: str) -> None:
    """Vacuum tables until no dead row stays.

    One vacuum is not always enough: it skips rows that another session's snapshot may see, and pages that the
    checkpointer is writing.
    """
    async with asyncio.timeout(60):
        for table in tables:
            await vacuum_tables(store, table)
            while left := await run_sql(store, _DEAD.format(schema=store.settings.schema, table=table)):
                print(f"{left[0][0]} dead rows stay in {table}: again")
                await asyncio.sleep(0.05)
                await vacuum_tables(store, table)


_DEAD = """
SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = '{schema}' AND relname = '{table}' AND n_dead_tup > 0
"""


@contextlib.asynccontextmanager
async def measure_cost(patch: pytest.MonkeyPatch) -> AsyncIterator[Cost]:
    """Measure each statement of any store inside the block: run it under EXPLAIN ANALYZE, undo it, then run it."""
    cost = Cost()
    plain = {name: getattr(Session, name) for name in ("fetch", "row", "value")}

    def weighing(name: str) -> Callable[..., Awaitable[Any]]:
        async def call(self: Session, sql: str, *parameters: Any) -> Any:
            if "pg_notify" not in sql:  # notifications are sent at times that the test does not control
                await _measure_statement(self, sql, parameters, cost)
            return await plain[name](self, sql, *parameters)

        return call

    with patch.context() as inner:
        for name in plain:
            inner.setattr(Session, name, weighing(name))
        yield cost


async def _measure_statement(session: Session, sql: str, parameters: tuple[Any, ...], cost: Cost) -> None:
    connection = session.connection
    inside = connection.is_in_transaction()
    await connection.execute("SAVEPOINT weighing" if inside else "BEGIN")
    words = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {session._qualify(sql)}"
    (plan,) = json.loads(await connection.fetchval(words, *parameters))
    await connection.execute("ROLLBACK TO weighing; RELEASE weighing" if inside else "ROLLBACK")
    cost.statements += 1
    # A data-modifying CTE that no other part reads runs after the top of the plan; the top does not count its pages.
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
    """Durations of calls, in milliseconds."""

    def __init__(self) -> None:
        self.ms: list[float] = []

    @contextlib.contextmanager
    def one(self) -> Any:
        began = time.perf_counter()
        yield
        self.ms.append((time.perf_counter() - began) * 1000)

    def at(self, share: float) -> float:
        """Return the duration that this share of the calls did not exceed."""
        ordered = sorted(self.ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    def __str__(self) -> str:
        return f"p50 {self.at(0.5):.1f} ms, p99 {self.at(0.99):.1f} ms, worst {max(self.ms):.1f} ms of {len(self.ms)}"
