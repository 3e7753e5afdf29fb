"""The connection to Redis or Valkey as the broker needs it: patient with nothing, clear about what is wrong."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, TypeVar

from redis import exceptions
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from mainspring.model.errors import BrokerDenied, BrokerError, BrokerUnavailable, StoreDenied, StoreUnavailable
from mainspring.stores.redis.errors import DRIVER, translate
from mainspring.stores.redis.settings import RedisSettings

T = TypeVar("T")

#: Seconds to connect, and for an answer; a read that waits for messages takes less.
CONNECT, ANSWER = 2.0, 4.0
OLDEST = (6, 2)
_NOBODY = SimpleNamespace(sentinels=())


class Client:
    """One pool of connections, made when it is needed."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._redis: Any = None

    @property
    def where(self) -> str:
        """The server for people: no password."""
        return self._settings.where

    @property
    def redis(self) -> Any:
        """The client of redis-py, whose annotations do not tell an answer from a promise of one."""
        if self._redis is None:
            self._redis = _connected(self._settings)
            for command in ("XREADGROUP", "XREAD"):  # as they come: a dict for each entry takes longer than the rest
                self._redis.set_response_callback(command, _plain)
        return self._redis

    async def ask(self, call: Awaitable[T]) -> T:
        """The answer of a call, in time; the driver's own timer would swallow a cancellation."""
        async with asyncio.timeout(ANSWER):
            return await call

    async def check(self) -> None:
        """Reach the server; refuse one that is too old, or that may not be written."""
        try:
            facts = _one(await self.ask(self.redis.info()))
        except DRIVER as error:
            raise translated(error, self.where) from error
        version = tuple(int(part) for part in str(facts.get("redis_version", "0")).split(".")[:2])
        if version < OLDEST:
            raise BrokerError(f"{self.where} is version {facts['redis_version']}; the broker needs Redis 6.2 or Valkey")
        if facts.get("role") == "slave" and self._settings.mode == "server":
            raise BrokerUnavailable(f"{self.where} is a read-only replica. Give the primary's address, or a Sentinel's")

    async def close(self) -> None:
        client, self._redis = self._redis, None
        if client is None:
            return
        await client.aclose()
        for sentinel in getattr(getattr(client, "connection_pool", None), "sentinel_manager", _NOBODY).sentinels:
            await sentinel.aclose()


def _connected(settings: RedisSettings) -> Any:
    tls: dict[str, Any] = {}
    if settings.tls:
        tls = {
            "ssl": True,
            "ssl_ca_certs": settings.tls_ca,
            "ssl_certfile": settings.tls_cert,
            "ssl_keyfile": settings.tls_key,
            "ssl_cert_reqs": "required" if settings.tls_verify else "none",
            "ssl_check_hostname": settings.tls_verify,
        }
    common: dict[str, Any] = {
        "username": settings.user,
        "password": settings.password,
        "protocol": 2,
        "socket_connect_timeout": CONNECT,
        "socket_timeout": None,
        "client_name": f"{settings.client_name}-broker",
        **tls,
    }
    never = Retry(NoBackoff(), 0)  # whoever calls has patience of its own
    host, port = settings.hosts[0]
    if settings.mode == "cluster":
        nodes = [ClusterNode(*host) for host in settings.hosts]
        return RedisCluster(startup_nodes=nodes, retry=never, **common)
    if settings.mode == "sentinel":
        of_sentinel = {**common, "username": settings.sentinel_user, "password": settings.sentinel_password}
        sentinel: Any = Sentinel  # untyped
        watched = sentinel(list(settings.hosts), sentinel_kwargs=of_sentinel)
        return watched.master_for(settings.service, db=settings.db, retry=never, **common)
    return Redis(host=host, port=port, db=settings.db, retry=never, **common)


def _plain(answer: Any, **_: Any) -> Any:
    return answer


def _one(info: dict[str, Any]) -> dict[str, Any]:
    """The facts of one server, where a cluster tells those of each node."""
    first = next(iter(info.values()), None)
    return first if isinstance(first, dict) and "redis_version" in first else info


class Script:
    """A script with one key, called by its hash; a server that does not know it is told."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, client: Client, key: str, *values: Any) -> Any:
        try:
            return await client.redis.evalsha(self._sha, 1, key, *values)
        except exceptions.NoScriptError:
            return await client.redis.eval(self._text, 1, key, *values)


def translated(error: BaseException, where: str) -> BrokerError:
    """Our error for one of redis-py's: denied, away, or wrong."""
    found = translate(error, where)
    kind = BrokerError
    if isinstance(found, StoreDenied):
        kind = BrokerDenied
    elif isinstance(found, StoreUnavailable):
        kind = BrokerUnavailable
    return kind(str(found))
