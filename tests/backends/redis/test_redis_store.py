"""The Redis store passes the store contract on Valkey and on the oldest supported Redis."""

from __future__ import annotations

import pytest

from mainspring.backends.redis import RedisStore
from mainspring.testing.contract.store import StoreContract
from servers.for_tests_redis import cluster, fresh_url, sentineled, server_url, tls_url

#: The contract writes rows that no log could rebuild, so `events verify` skips these stores.
pytestmark = pytest.mark.tampers


class TestValkey(StoreContract):
    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(server_url("valkey"))))


class TestRedis(StoreContract):
    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(server_url("redis"))))


class TestCluster(StoreContract):
    """Three masters, of which one has the slot of every key."""

    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(cluster().url)))


class TestSentinel(StoreContract):
    """A primary whose address a Sentinel reports."""

    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(sentineled().url)))


class TestTls(StoreContract):
    """A server that was built with TLS, which the servers of the wheels are not."""

    make = staticmethod(lambda tmp_path: RedisStore(fresh_url(tls_url())))
