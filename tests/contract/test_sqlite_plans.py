"""How SQLite looks for things of which there may be a million."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.ports.store import Schedules
from mainspring.stores.sqlite.store import SqliteStore


@pytest.mark.parametrize("ns", [None, "default"])
async def test_repair_reads_no_schedule_that_has_a_next_time(tmp_path: Path, ns: str | None) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    connection = store._db.connection
    said: list[str] = []
    connection.set_trace_callback(said.append)
    await store.find(Schedules(ns=ns, unplanned=True, after="x", limit=5))
    connection.set_trace_callback(None)
    plan = " ".join(str(row) for row in connection.execute("EXPLAIN QUERY PLAN " + said[-1]))
    await store.close()
    assert "USING INDEX schedule_unplanned" in plan
    assert "SCAN s " not in plan.replace("schedule_unplanned", "")
