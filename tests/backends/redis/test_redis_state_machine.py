"""Random commands return the same answers and leave the same rows on Valkey and Redis as in memory."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from mainspring.backends.redis import RedisStore
from mainspring.testing.contract.state_machine import store_machine
from servers.for_tests_redis import fresh_url, server_url

#: The machine writes rows that no log could rebuild, so `events verify` skips these stores.
pytestmark = pytest.mark.tampers

_SETTINGS = settings(
    max_examples=6, stateful_step_count=10, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

TestOnValkey = store_machine(lambda folder: RedisStore(fresh_url(server_url("valkey")))).TestCase
TestOnValkey.settings = _SETTINGS
TestOnRedis = store_machine(lambda folder: RedisStore(fresh_url(server_url("redis")))).TestCase
TestOnRedis.settings = _SETTINGS
