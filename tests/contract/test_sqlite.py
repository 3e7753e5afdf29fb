"""The SQLite store keeps the contract."""

from __future__ import annotations

from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.contract import StoreContract


class TestSqlite(StoreContract):
    make = staticmethod(lambda tmp_path: SqliteStore(str(tmp_path / "ledger.db")))
