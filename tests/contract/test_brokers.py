"""The brokers keep their contract: in memory, on Valkey and on the oldest Redis."""

from __future__ import annotations

from mainspring.brokers.memory import MemoryBroker
from mainspring.brokers.redis_client import Client
from mainspring.brokers.redis_streams import RedisStreams
from mainspring.ports.broker import Broker, Limits
from mainspring.stores.redis.settings import read_url
from mainspring.testing.broker_contract import BrokerContract
from servers.for_tests_redis import server_url
from servers.redis import Kind


def _streams(kind: Kind, place: str, limits: Limits) -> Broker:
    return RedisStreams(Client(read_url(server_url(kind))), prefix=place, limits=limits)


class TestMemory(BrokerContract):
    make = staticmethod(lambda place, limits: MemoryBroker(place, limits=limits))


class TestValkey(BrokerContract):
    make = staticmethod(lambda place, limits: _streams("valkey", place, limits))


class TestRedis(BrokerContract):
    make = staticmethod(lambda place, limits: _streams("redis", place, limits))
