"""The memory store keeps the contract. It is the reference, so the state machine compares it with a second one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from mainspring.backends.memory.store import MemoryStore
from mainspring.testing.contract.state_machine import store_machine
from mainspring.testing.contract.store import StoreContract

#: These tests write rows that no events explain, so `events verify` is not run after them.
pytestmark = pytest.mark.tampers


class TestMemory(StoreContract):
    make = staticmethod(lambda tmp_path: MemoryStore())


TestMachine = store_machine(lambda tmp_path: MemoryStore()).TestCase
TestMachine.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
