"""The SQLite store keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.backends.sqlite import SqliteStore
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.testing.contract.store import StoreContract

#: These tests write rows that no events explain, so `events verify` is not run after them.
pytestmark = pytest.mark.tampers


class TestSqlite(StoreContract):
    make = staticmethod(lambda tmp_path: SqliteStore(str(tmp_path / "ledger.db")))


async def test_the_tables_have_the_columns_of_the_model(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "ledger.db"))
    await store.open()

    def columns(table: str) -> set[str]:
        return {row[1] for row in store._db.run(f"PRAGMA table_info({table})").fetchall()}

    assert columns("run") == {*Run.__struct_fields__, "rid", "mark"}
    assert columns("schedule") == {*Schedule.__struct_fields__, "sid", "mark", "touched", "body"}
    await store.close()
