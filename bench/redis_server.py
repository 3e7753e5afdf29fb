"""The benchmark's own Valkey or Redis: a server for each run, with an append-only file flushed every second."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from servers.postgres import Unavailable
from servers.redis import Kind, RedisServer

#: Settings that the tables show.
_SHOWN = ("appendonly", "appendfsync", "save", "maxmemory-policy", "io-threads")


class Keyspaces:
    """Starts a server for each run, Valkey if it is installed: no run inherits the memory or the file of another."""

    def __init__(self) -> None:
        self._kind: Kind | None = None

    def about(self) -> dict[str, str]:
        """Return the settings that matter, as reported by a server."""
        server = self._start()
        try:
            with server.client() as client:
                found = client.config_get(*_SHOWN)
            said = server.info("server")
            names = {"name": "Valkey" if server.kind == "valkey" else "Redis"}
            names["server_version"] = str(said.get("valkey_version") or said["redis_version"])
            return names | {name: str(found[name]) or "none" for name in _SHOWN if name in found}
        finally:
            server.remove()

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        """Yield the URL of an unused server; stop the server afterwards."""
        server = self._start()
        try:
            yield server.url
        finally:
            server.remove()

    def _start(self) -> RedisServer:
        if self._kind is not None:
            return RedisServer(self._kind, fsync="everysec").start()
        try:
            server = RedisServer("valkey", fsync="everysec").start()
        except Unavailable:
            server = RedisServer("redis", fsync="everysec").start()
        self._kind = server.kind
        return server
