"""Copies carry locks and execution leases: tokens keep growing, and executed fires stay taken."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainspring import ExecutionTaken, Mainspring
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.ledger.compare import compare
from mainspring.ledger.copy import copy
from mainspring.testing.contract.factories import T0


async def test_locks_continue_with_greater_tokens_and_executed_fires_stay_taken(tmp_path: Path) -> None:
    source = Mainspring(f"sqlite:///{tmp_path / 'a.db'}")
    for _ in range(3):
        async with source.lock("import"):
            pass
    fire = datetime(2026, 7, 1, tzinfo=UTC)
    async with source.execution_lease("nightly", fire):
        pass
    await source.close()
    stores = SqliteStore(tmp_path / "a.db"), SqliteStore(tmp_path / "b.db")
    for store in stores:
        await store.open()
    await copy(*stores)
    comparison = await compare(*stores, T0)
    assert comparison.ok, comparison
    assert comparison.source["leases"] == 2
    assert await stores[1].lease("lock:default:import", "later", 60_000) is not None
    assert await stores[1].release("lock:default:import", "later", 4)
    assert (await compare(*stores, T0)).differences == ["content"]
    for store in stores:
        await store.close()
    target = Mainspring(f"sqlite:///{tmp_path / 'b.db'}")
    try:
        async with target.lock("import") as guard:
            assert guard.token == 5
        with pytest.raises(ExecutionTaken, match="has been executed"):
            async with target.execution_lease("nightly", fire):
                pass
    finally:
        await target.close()
