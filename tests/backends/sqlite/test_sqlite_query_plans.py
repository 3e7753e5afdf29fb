"""The indexes that SQLite uses for tables with a million rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mainspring.backends.sqlite.apply_sql import REFUSED_RUNS
from mainspring.backends.sqlite.due import _DUE_SCHEDULES
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.model.run import State
from mainspring.ports.store import Query, Runs, Schedules


async def plan_of(folder: Path, query: Query[Any]) -> str:
    """Return the query plan of the last statement that `find` runs for a query."""
    store = SqliteStore(folder / "a.db")
    await store.open()
    connection = store._db.connection
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    await store.find(query)
    connection.set_trace_callback(None)
    plan = " ".join(str(row) for row in connection.execute("EXPLAIN QUERY PLAN " + statements[-1]))
    await store.close()
    return plan


@pytest.mark.parametrize("ns", [None, "default"])
async def test_repair_reads_no_schedule_that_has_a_next_fire(tmp_path: Path, ns: str | None) -> None:
    plan = await plan_of(tmp_path, Schedules(ns=ns, unplanned=True, after="x", limit=5))
    assert "USING INDEX schedule_unplanned" in plan


@pytest.mark.parametrize("states", [("failed",), ("lost", "failed"), ("cancelled",), ("skipped",)])
async def test_unsuccessful_runs_are_found_without_reading_successful_ones(
    tmp_path: Path, states: tuple[str, ...]
) -> None:
    plan = await plan_of(tmp_path, Runs(states=tuple(map(State, states)), limit=50))
    assert "INDEX run_unhappy" in plan
    assert "TEMP B-TREE" not in plan
    of_one = await plan_of(tmp_path, Runs(states=tuple(map(State, states)), schedule_id="s", limit=50))
    assert "INDEX run_of_schedule" in of_one


async def test_due_schedules_are_read_in_the_order_of_their_time_and_age(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    plan = " ".join(
        str(row) for row in store._db.connection.execute("EXPLAIN QUERY PLAN " + _DUE_SCHEDULES, ("[]", 1, 5))
    )
    await store.close()
    assert "USING INDEX schedule_next (next_at>? AND next_at<?)" in plan
    assert "TEMP B-TREE" not in plan


async def test_a_fire_is_found_by_both_its_columns(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    plan = " ".join(str(row) for row in store._db.connection.execute("EXPLAIN QUERY PLAN " + REFUSED_RUNS, ("[]",)))
    columns = [name for _, _, name in store._db.connection.execute("PRAGMA index_info(run_fire)")]
    await store.close()
    assert "INDEX run_fire (fire_key=? AND schedule_id=?)" in plan
    assert columns == ["fire_key", "schedule_id"]  # fires of one instant are neighbours in the index
