"""Random commands give the same answers and the same rows on PostgreSQL as in memory."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from mainspring.testing.contract.state_machine import store_machine
from servers.for_tests import fresh_store

#: Rows are written past the rules, which no log could rebuild: not for `events verify`.
pytestmark = pytest.mark.tampers

TestMachine = store_machine(lambda folder: fresh_store()).TestCase
TestMachine.settings = settings(
    max_examples=8, stateful_step_count=10, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
