"""Parts of the kill loops for Redis: a server that can be killed and restarted, and a proxy link that loses answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import redis

from mainspring.backends.redis import RedisStore
from mainspring.ports.store import Store
from servers.postgres import Unavailable
from servers.redis import Kind, RedisServer
from tests.system.chaos_proxy import Link

#: Exit code of a loop when no server can be started on this machine.
NO_SERVER = 3
TEMPLATE = "template"


class RedisPower:
    """One server of the loop's own that writes its file to disk before it answers (AOF `always`)."""

    def __init__(self, kind: Kind = "valkey") -> None:
        self.server = RedisServer(kind, fsync="always").start()

    @property
    def port(self) -> int:
        return self.server.port

    def url(self, port: int | None = None) -> str:
        return f"redis://127.0.0.1:{port or self.port}/0"

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def freeze(self) -> None:
        self.server.pause()

    def thaw(self) -> None:
        self.server.resume()

    def stop(self) -> None:
        self.server.remove()


class RedisLink(Link):
    """A proxied connection: a commit is a script, and its answer is the next data from the server."""

    async def upstream(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65_536):
            if not await self.proxy.passes(self):
                continue
            if self.proxy.lose_commits > 0 and b"EVALSHA" in data:
                self.proxy.lose_commits -= 1
                self.losing = True
            self.server.write(data)
            await self.server.drain()

    def _watch(self, data: bytes) -> bool:
        return True


class Prefixes:
    """Stores of the failpoint matrix: one key prefix for each, copied key by key from a template's prefix."""

    whole_steps = True

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def make(self, url: str, failpoint: Callable[[str], None]) -> Store:
        return RedisStore(url, failpoint=failpoint)

    def url(self, root: Path, name: str) -> str:
        return f"{self._server.url}?prefix={_plain(name)}"

    def copy(self, root: Path, name: str) -> None:
        origin, target = f"{{{TEMPLATE}}}", f"{{{_plain(name)}}}"
        with redis.Redis(port=self._server.port) as client:
            for key in client.scan_iter(f"{origin}*"):
                value, ttl = client.dump(key), client.pttl(key)
                assert isinstance(value, bytes)
                client.restore(key.replace(origin.encode(), target.encode(), 1), max(0, ttl), value)


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "-", name)


__all__ = ["NO_SERVER", "Prefixes", "RedisLink", "RedisPower", "Unavailable"]
