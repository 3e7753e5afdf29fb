"""The Redis store keeps the contract, on Valkey and on the oldest Redis we support."""

from __future__ import annotations

import pytest

from mainspring.stores.redis import RedisStore
from mainspring.testing.contract import StoreContract
from servers.for_tests_redis import cluster, fresh_url, sentineled, server_url, tls_url

#: Rows are written past the rules, which no log could rebuild: not for `events verify`.
pytestmark = pytest.mark.tampers


class TestValkey(StoreContract):
    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(server_url("valkey"))))


class TestRedis(StoreContract):
    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(server_url("redis"))))


class TestCluster(StoreContract):
    """Three masters: one of them has the slot of every key."""

    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(cluster().url)))


class TestSentinel(StoreContract):
    """The primary is where the Sentinel says."""

    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(sentineled().url)))


class TestTls(StoreContract):
    """A server that speaks TLS itself; those of the wheels do not."""

    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(tls_url())))
