"""The memory store keeps the contract; it is the reference, so the machine compares it with a second one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from mainspring.stores.memory import MemoryStore
from mainspring.testing.contract import StoreContract
from mainspring.testing.model_check import store_machine

#: Rows are written past the rules, which no log could rebuild: not for `events verify`.
pytestmark = pytest.mark.tampers


class TestMemory(StoreContract):
    make = staticmethod(lambda tmp_path: MemoryStore())


TestMachine = store_machine(lambda tmp_path: MemoryStore()).TestCase
TestMachine.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
