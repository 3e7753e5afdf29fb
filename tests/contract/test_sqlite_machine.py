"""Random commands give the same answers and the same rows on SQLite as in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mainspring.ports.store import Store
from mainspring.testing.model_check import store_machine

#: Rows are written past the rules, which no log could rebuild: not for `events verify`.
pytestmark = pytest.mark.tampers


def make(folder: Path) -> Store:
    from mainspring.stores.sqlite import SqliteStore

    return SqliteStore(folder / "ledger.db")


TestMachine = store_machine(make).TestCase
TestMachine.settings = settings(
    max_examples=15, stateful_step_count=12, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
