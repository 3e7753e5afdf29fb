"""The SQLite store keeps the contract."""

from __future__ import annotations

import pytest

from mainspring.stores.sqlite import SqliteStore
from mainspring.testing.contract import StoreContract

#: Rows are written past the rules, which no log could rebuild: not for `events verify`.
pytestmark = pytest.mark.tampers


class TestSqlite(StoreContract):
    make = staticmethod(lambda tmp_path: SqliteStore(str(tmp_path / "ledger.db")))
