"""A PostgreSQL server of the tests, with fsync on, that can be killed and restarted; and the proxy before it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg

from mainspring.backends.postgres import PostgresStore
from servers.postgres import Server, Unavailable
from tests.system.chaos_proxy import Link, Remote, serve
from tests.system.nodes import fork, wait_until

#: The exit code of scripts that find no PostgreSQL.
NO_SERVER = 3


class PowerCut:
    """One server process, owned by its creator; its child processes die with it."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self._said = folder / "server.txt"
        folder.chmod(0o755)
        self.server = Server(folder, durable=durable)
        with self._quietly():
            self.server.create()
            self.server.start()

    @property
    def port(self) -> int:
        return self.server.port

    def url(self, port: int | None = None, database: str = "postgres") -> str:
        """Return the server's URL, directly or through a proxy's port."""
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def kill(self) -> None:
        """kill -9 of every process of the server at once."""
        process = self.server.process
        assert process is not None
        pids = self._signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: not any(map(_alive, pids)), 30, "the server's processes are gone")

    def freeze(self) -> None:
        """Stop all processes: clients get no answer and no error."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let all processes continue."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> list[int]:
        """Send a signal to the server and all its children, the parent first, so that it starts no more."""
        process = self.server.process
        assert process is not None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        pids = [process.pid, *map(int, children.read_text().split())]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def start(self) -> None:
        """Start it again on what the disk holds; returns when it answers."""
        with self._quietly():
            self.server.start()

    def stop(self) -> None:
        self.server.stop()

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """What the server prints goes to a file."""
        sys.stdout.flush()
        kept = os.dup(1), os.dup(2)
        file = os.open(self._said, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.dup2(file, 1)
            os.dup2(file, 2)
            yield
        finally:
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            for number in (*kept, file):
                os.close(number)


def _alive(pid: int) -> bool:
    """Return True if the process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Databases:
    """Databases for ledgers, each copied from a template database."""

    whole_steps = False

    def __init__(self, server: PowerCut) -> None:
        self._server = server
        asyncio.run(self._create("template", "template0"))

    def make(self, url: str, failpoint: Callable[[str], None]) -> PostgresStore:
        return PostgresStore(url, failpoint=failpoint)

    def url(self, root: Path, name: str) -> str:
        return self._server.url(database=_database_name(name))

    def copy(self, root: Path, name: str) -> None:
        asyncio.run(self._create(_database_name(name), "template"))

    async def _create(self, name: str, origin: str) -> None:
        connection = await asyncpg.connect(self._server.url())
        try:
            await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{origin}"')
        finally:
            await connection.close()


def _database_name(name: str) -> str:
    return re.sub("[^a-z0-9]", "_", name)


def start_proxy(folder: Path, server_port: int, ports: int, link: type[Link] = Link) -> tuple[int, Remote]:
    """Start the proxy in a process of its own; return the process id and a remote control of the proxy."""
    answer = folder / "proxy.json"

    def tell(found: dict[str, object]) -> None:
        (folder / "proxy.new").write_text(json.dumps(found))
        (folder / "proxy.new").rename(answer)

    def work() -> None:
        asyncio.run(serve(server_port, ports, tell, link))

    pid = fork(work, folder / "proxy.txt")
    wait_until(answer.exists, 30, "the proxy listens")
    return pid, Remote(json.loads(answer.read_text()))


__all__ = ["NO_SERVER", "Databases", "PowerCut", "Unavailable", "start_proxy"]
