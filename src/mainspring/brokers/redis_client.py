"""The connection to Redis or Valkey as the broker needs it: patient with nothing, clear about what is wrong."""

from __future__ import annotations

import hashlib
from typing import Any

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from mainspring.model.errors import BrokerDenied, BrokerError, BrokerUnavailable

#: Seconds to connect, and for an answer; a read that waits for messages takes less.
CONNECT, ANSWER = 2.0, 4.0
OLDEST = (6, 2)
_AWAY = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.BusyLoadingError, exceptions.ReadOnlyError)
#: Answers of a server that cannot write now, and will by itself or when somebody helps it.
_LATER = ("OOM", "MISCONF", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "CLUSTERDOWN", "TRYAGAIN")


class Client:
    """One pool of connections, made when it is needed."""

    def __init__(self, url: str, shown: str) -> None:
        self._url = url
        self.shown = shown
        self._redis: Redis | None = None

    @property
    def redis(self) -> Any:
        """The client of redis-py, whose annotations do not tell an answer from a promise of one."""
        if self._redis is None:
            self._redis = Redis.from_url(
                self._url,
                protocol=2,
                socket_connect_timeout=CONNECT,
                socket_timeout=ANSWER,
                health_check_interval=0,
                retry=Retry(NoBackoff(), 0),  # whoever calls has patience of its own
                client_name="mainspring-broker",
            )
        return self._redis

    async def check(self) -> None:
        """Reach the server; refuse one that is too old, or that may not be written."""
        try:
            facts = await self.redis.info("server")
            role = await self.redis.info("replication")
        except exceptions.RedisError as error:
            raise translated(error, self.shown) from error
        version = tuple(int(part) for part in str(facts.get("redis_version", "0")).split(".")[:2])
        if version < OLDEST:
            raise BrokerError(
                f"{self.shown} is Redis {facts['redis_version']}. The broker needs 6.2 or newer, or Valkey"
            )
        if role.get("role") == "slave":
            raise BrokerUnavailable(f"{self.shown} is a read-only replica. Give the address of its primary")

    async def close(self) -> None:
        client, self._redis = self._redis, None
        if client is not None:
            await client.aclose()


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


def translated(error: exceptions.RedisError, shown: str = "the broker") -> BrokerError:
    """Our error for one of redis-py's: away, denied, or wrong."""
    text = str(error)
    if isinstance(error, exceptions.AuthenticationError) or text.startswith(("WRONGPASS", "NOAUTH")):
        return BrokerDenied(f"{shown} refused the login: {text}. Give redis://USER:PASSWORD@HOST:PORT")
    if isinstance(error, exceptions.NoPermissionError) or text.startswith("NOPERM"):
        return BrokerDenied(
            f"{shown} refused a command: {text}. The user needs streams (XADD, XREADGROUP, …) and scripts"
        )
    if isinstance(error, _AWAY) or any(word in text for word in _LATER):
        return BrokerUnavailable(f"{shown} cannot be used now: {text}")
    return BrokerError(f"{shown}: {text}")
