"""The brokers keep their contract: in memory, on Valkey and on the oldest Redis."""

from __future__ import annotations

from mainspring.backends.memory.broker import MemoryBroker
from mainspring.backends.redis.broker import RedisStreams
from mainspring.backends.redis.broker_client import BrokerClient
from mainspring.backends.redis.settings import read_url
from mainspring.ports.broker import Broker, BrokerLimits
from mainspring.testing.broker_contract import BrokerContract
from servers.for_tests_redis import server_url
from servers.redis import Kind


def _streams(kind: Kind, place: str, limits: BrokerLimits) -> Broker:
    return RedisStreams(BrokerClient(read_url(server_url(kind))), prefix=place, limits=limits)


class TestMemory(BrokerContract):
    make = staticmethod(lambda place, limits: MemoryBroker(place, limits=limits))


class TestValkey(BrokerContract):
    make = staticmethod(lambda place, limits: _streams("valkey", place, limits))


class TestRedis(BrokerContract):
    make = staticmethod(lambda place, limits: _streams("redis", place, limits))
