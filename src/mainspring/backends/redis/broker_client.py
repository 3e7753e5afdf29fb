"""The broker's client of Redis or Valkey. It does not retry calls; its errors name the problem and the fix."""

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

from mainspring.backends.redis.errors import DRIVER_ERRORS, translate
from mainspring.backends.redis.server_checks import MIN_REDIS_VERSION
from mainspring.backends.redis.settings import RedisSettings
from mainspring.model.errors import BrokerDenied, BrokerError, BrokerUnavailable, StoreDenied, StoreUnavailable

T = TypeVar("T")

#: Time-outs for connecting, and for an answer. A read that waits for messages waits less than the second time-out.
CONNECT_TIMEOUT_SECONDS, ANSWER_TIMEOUT_SECONDS = 2.0, 4.0
#: Takes the place of the driver's manager of Sentinels when a client has none.
_NO_SENTINELS = SimpleNamespace(sentinels=())


class BrokerClient:
    """The broker's connection to Redis or Valkey: a client with one pool of connections, created at the first call."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._redis: Any = None

    @property
    def where(self) -> str:
        """The server's name in error texts, without the password."""
        return self._settings.where

    @property
    def redis(self) -> Any:
        """The client of redis-py, created at first use.

        Why the type is Any: redis-py's annotations do not tell an answer from an awaitable of it.
        """
        if self._redis is None:
            self._redis = _create_client(self._settings)
            for command in ("XREADGROUP", "XREAD"):  # unparsed: a dict for each entry would cost more than the read
                self._redis.set_response_callback(command, _unchanged)
        return self._redis

    async def run(self, call: Awaitable[T]) -> T:
        """Await a call of redis-py and return its answer.

        Raises: TimeoutError after ANSWER_TIMEOUT_SECONDS; the driver's errors. Why not the driver's own time-out: it
        would swallow a cancellation.
        """
        async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
            return await call

    async def check(self) -> None:
        """Connect to the server and check it.

        Raises: BrokerError if the server is too old; BrokerUnavailable if it cannot be reached, or if the URL names one
        server that is a read-only replica; BrokerDenied if it refuses the user.
        """
        try:
            info = _first_node_info(await self.run(self.redis.info()))
        except DRIVER_ERRORS as error:
            raise to_broker_error(error, self.where) from error
        version = tuple(int(part) for part in str(info.get("redis_version", "0")).split(".")[:2])
        if version < MIN_REDIS_VERSION:
            raise BrokerError(f"{self.where} is version {info['redis_version']}; the broker needs Redis 6.2 or Valkey")
        if info.get("role") == "slave" and self._settings.mode == "server":
            raise BrokerUnavailable(f"{self.where} is a read-only replica. Give the primary's address, or a Sentinel's")

    async def close(self) -> None:
        """Close all connections, including those to Sentinels. A later call opens new ones."""
        client, self._redis = self._redis, None
        if client is None:
            return
        await client.aclose()
        for sentinel in getattr(getattr(client, "connection_pool", None), "sentinel_manager", _NO_SENTINELS).sentinels:
            await sentinel.aclose()


def _create_client(settings: RedisSettings) -> Any:
    """Return the client of redis-py for one server, Sentinels or a cluster; it connects at its first call."""
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
        "socket_connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "socket_timeout": None,
        "client_name": f"{settings.client_name}-broker",
        **tls,
    }
    never = Retry(NoBackoff(), 0)  # the engine's broker link retries
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


def _unchanged(answer: Any, **_: Any) -> Any:
    """Return an answer of the server as it is. redis-py calls this in place of its parser."""
    return answer


def _first_node_info(info: dict[str, Any]) -> dict[str, Any]:
    """Return the INFO of one server: `info` itself, or for a cluster that of the first node.

    For a cluster, redis-py returns a dict from nodes to their INFO.
    """
    first = next(iter(info.values()), None)
    return first if isinstance(first, dict) and "redis_version" in first else info


class TopicScript:
    """A Lua script on the stream of one topic, called by the hash of its text.

    The text is sent only to a server that does not have it.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, client: BrokerClient, key: str, *values: Any) -> Any:
        """Run the script on the stream `key` with the arguments `values`, and return its answer.

        Callers await this call by `BrokerClient.run`, which adds a time-out. Raises: the driver's errors.
        """
        try:
            return await client.redis.evalsha(self._sha, 1, key, *values)
        except exceptions.NoScriptError:
            return await client.redis.eval(self._text, 1, key, *values)


def to_broker_error(error: BaseException, where: str) -> BrokerError:
    """Return the broker error for an error of redis-py: BrokerDenied, BrokerUnavailable, or plain BrokerError.

    `where`: the server's name in the error text.
    """
    found = translate(error, where)
    kind = BrokerError
    if isinstance(found, StoreDenied):
        kind = BrokerDenied
    elif isinstance(found, StoreUnavailable):
        kind = BrokerUnavailable
    return kind(str(found))
