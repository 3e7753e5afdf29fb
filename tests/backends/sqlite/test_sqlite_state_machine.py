"""Random commands give the same answers and the same rows on SQLite as in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mainspring.ports.store import Store
from mainspring.testing.contract.state_machine import store_machine

#: These tests write rows that no events explain, so `events verify` is not run after them.
pytestmark = pytest.mark.tampers


def make(folder: Path) -> Store:
    from mainspring.backends.sqlite import SqliteStore

    return SqliteStore(folder / "ledger.db")


TestMachine = store_machine(make).TestCase
TestMachine.settings = settings(
    max_examples=15, stateful_step_count=12, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
