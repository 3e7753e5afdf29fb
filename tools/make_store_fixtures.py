"""Write one small, varied store per backend into a folder, as today's code makes it, together with its figures.

    PYTHONPATH=src:. .venv/bin/python tools/make_store_fixtures.py tests/fixtures/stored/COMMIT

Later versions must open these stores unchanged: tests/system/test_stored_data.py. To let an earlier commit write its
stores, run this file with the environment, PYTHONPATH and working directory of that commit. This file uses only the
public interface, so that it runs before and after a change of the source tree.

Each store is filled by five processes, one after the other (tools/store_fixture_lives.py): retention, a long life, the
service, a crash, a second crash. No figure depends on the time at which it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import mainspring
from mainspring import Mainspring
from mainspring.app.internals import host_of
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Schedules
from servers.postgres import binaries, postgres_url
from servers.redis import RedisServer

#: An address of this machine at which nothing else listens: later calls of the agent fail there.
AGENT = "127.7.4.99"
WAIT_SECONDS = 60.0
COMMAND = (sys.executable, "-m", "mainspring.cli.main")
LIVES = ("early", "long", "first_crash", "second_crash")


# ── an agent ────────────────────────────────────────────────────────────────


class Agent(BaseHTTPRequestHandler):
    """HTTP agent whose answer depends on the last part of the path."""

    def do_POST(self) -> None:
        """Answer a call with success, with "accepted for later", or with an error."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status = {"/well": 200, "/later": 202}.get(self.path, 500)
        data = json.dumps({"status": status, "said": "äöü"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def listening() -> Iterator[str]:
    """Run an agent in a thread and yield its URL."""
    with ThreadingHTTPServer((AGENT, 0), Agent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{AGENT}:{server.server_port}"
        server.shutdown()


# ── processes ───────────────────────────────────────────────────────────────


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `mainspring` with these arguments; return its exit code and its output."""
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, env=_environment())


def _environment() -> dict[str, str]:
    """Return the environment of a child: the code at hand, and no settings of this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}


def answered(*words: str) -> Any:
    """Run a command that must not fail and return the JSON that it printed."""
    return json.loads(_said(*words, "--json"))


def _said(*words: str) -> str:
    done = cli(*words)
    assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def _live(url: str, life: str, agent: str) -> None:
    program = os.fspath(Path(__file__).with_name("store_fixture_lives.py"))
    done = subprocess.run([sys.executable, program, life, url, agent], env=_environment(), check=False)
    expected = -signal.SIGKILL if life.endswith("crash") else 0
    assert done.returncode == expected, f"{life} on {url} ended with {done.returncode}"


def _serve(url: str, agent: str) -> None:
    """Run the service on a store: creates API keys (one used, one revoked) and an answer under an idempotency key."""
    key, *_ = (_said("key", "create", *words, "--store", url) for words in (["ops"], ["guest", "--expires", "300000d"]))
    _said("key", "create", "revoked", "--store", url)
    _said("key", "revoke", "revoked", "--store", url)
    options = ("--store", url, "--host", "127.0.0.1", "--port", "0", "--role", "api", "--log-level", "error")
    with tempfile.TemporaryDirectory() as folder:  # without a configuration file
        process = subprocess.Popen(
            [*COMMAND, "serve", *options], cwd=folder, env=_environment(), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            lines = (re.search(r"serves at (http://\S+)", line) for line in process.stdout)
            service = next(found[1] for found in lines if found is not None)
            assert [_post(service, key, agent) for _ in range(2)] == [None, "true"]
        finally:
            process.terminate()
            process.wait(WAIT_SECONDS)


def _post(service: str, key: str, agent: str) -> str | None:
    """Create a schedule over REST; return True if the answer was replayed from an earlier request."""
    wanted = {"name": "posted", "intervalMs": 3_600_000, "startAt": "2999-01-01T00:00:00Z", "agentUrl": f"{agent}/well"}
    headers = {"Content-Type": "application/json", "Idempotency-Key": "once-and-for-all"}
    headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{service}/api/schedules", json.dumps(wanted).encode(), headers)
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
        assert answer.status == 201
        replayed: str | None = answer.headers.get("Idempotency-Replayed")
        return replayed


def fill(url: str) -> dict[str, Any]:
    """Fill an empty store and return its final figures."""
    with listening() as agent:
        for life in LIVES:
            if life == "first_crash":
                _serve(url, agent)
                time.sleep(3)  # fires are missed meanwhile
            _live(url, life, agent)
    time.sleep(4)  # wait for the end of the last schedule and of the leases of the killed process
    return figures(url)


def figures(url: str) -> dict[str, Any]:
    """Return the output of the commands and the read API for a store, without values that depend on the time."""
    verified, book = answered("events", "verify", "--store", url), answered("ledger", "--store", url)
    log = answered("events", "list", "--limit", "100000", "--store", url)
    del book["now"]
    book["schedules"] = sorted(book["schedules"], key=lambda line: str(line["schedule_id"]))
    spans = Counter[str]()
    for event in log:
        if event["type"] == "FiresElided":
            spans[event["data"]["reason"]] += 1
    runs: dict[str, dict[str, int]] = {}
    schedules: dict[str, list[Any]] = {}
    for ns in ("default", "other"):
        ms = Mainspring(url, namespace=ns)
        found = ms.sync.runs(limit=100_000)
        runs[ns] = _sorted(Counter(str(run.state) for run in found))
        runs[f"{ns}, of them"] = {
            "dead": sum(run.dead for run in found),
            "parked": sum(run.parked_on is not None for run in found),
            "unique": sum(run.unique is not None for run in found),
            "results": sum(run.result is not None for run in found),
        }
        for row in _stored_schedules(ms, ns):
            schedules[f"{ns}/{row.name}"] = [str(row.state), row.revision, row.fired, row.origin, row.digest]
        ms.sync.close()
    return {
        "verify": verified,
        "ledger": book,
        "events": _sorted(Counter(event["type"] for event in log)),
        "elided": _sorted(spans),
        "runs": runs,
        "schedules": schedules,
        "schedules by state": _sorted(Counter(line["state"] for line in book["schedules"])),
        "keys": sorted(key["name"] for key in answered("key", "list", "--store", url)),
        "workers": sorted(worker["id"] for worker in answered("workers", "--all", "--store", url)),
    }


def _stored_schedules(ms: Mainspring, ns: str) -> list[Schedule]:
    host = host_of(ms)
    return host.block_on(host.call(lambda runtime: runtime.commands.schedules(Schedules(ns=ns, limit=1_000))), "…")


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))


# ── files ───────────────────────────────────────────────────────────────────


def sqlite_file(target: Path) -> dict[str, Any]:
    """Write `sqlite.db.gz`, with an empty journal, into the folder and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        found = fill(f"sqlite:///{path}")
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
        connection.close()
        (target / "sqlite.db.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return {"server": sqlite3.sqlite_version, **found}


def postgres_dump(target: Path) -> dict[str, Any]:
    """Write `postgres.sql.gz`, which any client can execute, into the folder and return its figures."""
    import asyncpg

    server, name = postgres_url(f"fixtures-{os.getpid()}"), f"mainspring_fixture_{os.getpid()}"

    async def execute(statement: str) -> str:
        connection = await asyncpg.connect(server)
        try:
            await connection.execute(statement)
            return str(await connection.fetchval("SHOW server_version"))
        finally:
            await connection.close()

    version = asyncio.run(execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'"))
    try:
        url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        found = fill(url)
        words = ["--inserts", "--no-owner", "--no-privileges", "--schema=mainspring", url]
        text = subprocess.run(
            [os.fspath(binaries() / "pg_dump"), *words], capture_output=True, text=True, check=True
        ).stdout
    finally:
        asyncio.run(execute(f"DROP DATABASE {name} WITH (FORCE)"))
    # Around it are words for psql, and settings that older servers do not know.
    _, mark, rest = text.partition("CREATE SCHEMA")
    body, _, _ = rest.rpartition("\\unrestrict")
    assert body
    (target / "postgres.sql.gz").write_bytes(gzip.compress(f"{mark}{body}".encode(), mtime=0))
    return {"server": version, **found}


def redis_snapshot(target: Path) -> dict[str, Any]:
    """Write `redis.rdb.gz`, made by the oldest server on this machine, into the folder and return its figures."""
    server = RedisServer("redis").start()
    try:
        found = fill(server.url)
        server.do("SAVE")
        (target / "redis.rdb.gz").write_bytes(gzip.compress((server.folder / "dump.rdb").read_bytes(), mtime=0))
        return {"server": server.info("server")["redis_version"], **found}
    finally:
        server.remove()


def main() -> None:
    """Parse the command line and write the fixtures."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    assert mainspring.__file__ is not None
    code = Path(mainspring.__file__).parent
    words = ["git", "-C", os.fspath(code), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    expected: dict[str, Any] = {"commit": commit, "written": datetime.now(UTC).isoformat(timespec="seconds")}
    for name, make in (("sqlite", sqlite_file), ("postgres", postgres_dump), ("redis", redis_snapshot)):
        began = time.monotonic()
        expected[name] = make(target)
        print(f"{name}: {expected[name]['runs']}, {time.monotonic() - began:.0f} s", flush=True)
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    (target / "expected.json").write_text(f"{text}\n", encoding="utf-8")
    for path in sorted(target.iterdir()):
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
