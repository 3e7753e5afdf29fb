"""The Redis store keeps the contract, on Valkey and on the oldest Redis we support."""

from __future__ import annotations

import pytest

from mainspring.stores.redis import RedisStore
from mainspring.testing.contract import StoreContract
from servers.for_tests_redis import fresh_url, server_url

#: Rows are written past the rules, which no log could rebuild: not for `events verify`.
pytestmark = pytest.mark.tampers


class TestValkey(StoreContract):
    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(server_url("valkey"))))


class TestRedis(StoreContract):
    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(server_url("redis"))))
