"""A Valkey or Redis of the proof's own that can lose its power and come back; and a proxy that knows its protocol."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

import redis
from chaos_proxy import Link

from mainspring.ports.store import Store
from mainspring.stores.redis import RedisStore

sys.path.append(str(Path(__file__).parents[2]))  # as a script we find our neighbours, but not the servers

from servers.postgres import Unavailable
from servers.redis import Kind, RedisServer

#: The exit code that says so.
NO_SERVER = 3
TEMPLATE = "template"


class RedisPower:
    """One server that flushes its file before it answers."""

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
    """A commit is a script; whatever the server says next on the connection is its answer."""

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
    """One prefix for each ledger, copied key by key from the template's."""

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
