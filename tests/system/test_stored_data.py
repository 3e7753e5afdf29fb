"""Stores written by earlier commits open: migrations only add tables, the figures are equal, and work goes on.

Each folder below tests/fixtures/stored/ was written by one commit with tools/make_store_fixtures.py.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from mainspring import AgentSettings, ExecutionTaken, HttpAgent, Mainspring
from mainspring.cli.main import mainspring
from servers.for_tests import database_url
from servers.for_tests import fresh_url as fresh_schema
from servers.for_tests_redis import skipping
from servers.redis import Kind, RedisServer
from tests.stored_rows import stored
from tools.make_store_fixtures import answered, figures
from tools.store_fixture_lives import FAR, declare

STORED = Path(__file__).parents[1] / "fixtures" / "stored"
FILES = {"sqlite": "sqlite.db.gz", "postgres": "postgres.sql.gz", "redis": "redis.rdb.gz", "valkey": "redis.rdb.gz"}
CASES = [
    pytest.param((folder, backend), id=f"{folder.name}-{backend}")
    for folder in sorted(STORED.iterdir())
    for backend, file in FILES.items()
    if (folder / file).exists()
]
#: Retention that is longer than any fixture will be old: its rows must not be purged during a test.
HISTORY = "300000d"


class Restored(NamedTuple):
    """A store as it was when the last process of the commit was killed, and the figures which that commit printed."""

    url: str
    backend: str
    expected: dict[str, Any]
    #: The schema as the store's own server sees it, with its version; Redis and Valkey have none.
    schema: Callable[[], list[Any]]


@pytest.fixture(params=CASES)
def restored(request: pytest.FixtureRequest, tmp_path: Path) -> Restored:
    folder, backend = request.param
    data = gzip.decompress((folder / FILES[backend]).read_bytes())
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    wanted = expected["redis" if backend == "valkey" else backend]
    url, schema = _restore(backend, data, tmp_path)
    old = schema()
    _migrate(url)
    # What the store had is still there, except for the number of the schema. Only tables of logs and a column are new.
    new = [row for row in schema() if not any("rewound" in str(value) for value in row)]
    added = [row for row in new if row not in old]
    missing = [row for row in old if row not in new and len(row) > 1]
    assert [row for row in missing if row[:2] != ("table", "schedule")] == []  # SQLite shows the table with its columns
    assert [row for row in added if len(row) > 1 and not any("log" in str(value) for value in row)] == []
    return Restored(url, backend, {name: value for name, value in wanted.items() if name != "server"}, schema)


def _restore(backend: str, data: bytes, folder: Path) -> tuple[str, Callable[[], list[Any]]]:
    if backend == "sqlite":
        path = folder / "store.db"
        path.touch(0o600)
        path.write_bytes(data)
        return f"sqlite:///{path}", lambda: _sqlite_schema(path)
    if backend == "postgres":
        url = fresh_schema()
        name = parse_qs(urlsplit(url).query)["schema"][0]
        # One script is one transaction: the name that the dump uses is free again when it is done.
        asyncio.run(_execute(f'{data.decode()}\nALTER SCHEMA mainspring RENAME TO "{name}";'))
        return url, lambda: asyncio.run(_postgres_schema(name))
    server = _redis("valkey" if backend == "valkey" else "redis")
    server.kill()
    (server.folder / "dump.rdb").write_bytes(data)
    return server.start().url, list


def _migrate(url: str) -> None:
    """Bring a store's schema up to date: a file at its opening, PostgreSQL by the command."""
    done = CliRunner().invoke(mainspring, ["migrate", "--store", url])
    assert done.exit_code == 0, done.output
    ms = Mainspring(url, history=HISTORY)
    ms.sync.runs(limit=1)
    ms.sync.close()


@cache
def _redis(kind: Kind) -> RedisServer:
    """Start a server that loads a snapshot; it ends with this process."""
    return skipping(lambda: RedisServer(kind, fsync=None))


def _sqlite_schema(path: Path) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        version = connection.execute("PRAGMA user_version").fetchall()
        return (
            version + connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2").fetchall()
        )
    finally:
        connection.close()


async def _execute(script: str) -> None:
    connection = await asyncpg.connect(database_url())
    try:
        await connection.execute(script)
    finally:
        await connection.close()


_POSTGRES = (
    "SELECT relname, relkind, reloptions FROM pg_class WHERE relnamespace = $1::regnamespace ORDER BY 1",
    """SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attcollation
       FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
       WHERE c.relnamespace = $1::regnamespace AND a.attnum > 0 ORDER BY 1, a.attnum""",
    "SELECT indexdef FROM pg_indexes WHERE schemaname = $1 ORDER BY 1",
    """SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
       WHERE connamespace = $1::regnamespace ORDER BY 1, 2""",
)


async def _postgres_schema(name: str) -> list[Any]:
    connection = await asyncpg.connect(database_url())
    try:
        rows = await connection.fetch(f'SELECT * FROM "{name}".migration ORDER BY number')
        for question in _POSTGRES:
            rows += await connection.fetch(question, name)
        return [tuple(row) for row in rows]
    finally:
        await connection.close()


def test_every_recorded_commit_left_a_store_of_each_kind() -> None:
    folders = sorted(STORED.iterdir())
    assert folders
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"expected.json", *FILES.values()}
        assert json.loads((folder / "expected.json").read_text(encoding="utf-8"))["commit"] == folder.name


def test_every_figure_is_the_same(restored: Restored) -> None:
    """`events verify` and `ledger` end with 0, or `figures` fails."""
    before = restored.schema()
    found = figures(restored.url)
    for fields in (found["ledger"], restored.expected["ledger"]):
        fields.pop("warnings", None)  # of runs that no live instance can execute; earlier commits had none
        for line in (fields, *fields["schedules"]):  # earlier commits knew no schedules ahead of the clock
            line.pop("ahead", None)
            line.pop("taken_back", None)
    assert {name: found[name] for name in restored.expected} == restored.expected
    assert restored.schema() == before


def test_the_program_of_a_stored_ledger_continues_on_it(restored: Restored) -> None:
    """The program of that commit continues on today's code: its schedules exist, due runs start, keys are held."""
    before, log = restored.schema(), answered("events", "list", "--limit", "100000", "--store", restored.url)
    ms = Mainspring(restored.url, name="fixture", version="1", tz="Europe/Berlin", history=HISTORY)
    declare(ms)

    @ms.task
    def work(value: str, copies: int = 1) -> dict[str, int]:
        return {value: copies}

    ms.sync.resume("still")
    run = ms.sync.trigger("still")
    ms.run(until_idle=True)
    assert run.result("1s") == {"still": 2}
    assert [ms.sync.get(name).revision for name in ("declared", "drifted", "still")] == [1, 2, 1]
    assert ms.sync.get("overdue").state == "finished"
    assert not work.using(at=FAR, unique="only one").sync.enqueue("future").created
    if restored.backend != "sqlite":  # leases in a file end when the machine starts again, and with it this one
        with pytest.raises(ExecutionTaken, match="has been executed"), ms.sync.execution_lease("nightly", FAR):
            pass
    ms.sync.close()
    assert answered("events", "verify", "--store", restored.url)["ok"]
    book = answered("ledger", "--store", restored.url)
    assert (book["unexplained"], book["behind"]) == (0, 0)
    assert book["planned"] > restored.expected["ledger"]["planned"]
    assert answered("events", "list", "--limit", "100000", "--store", restored.url)[: len(log)] == log
    assert restored.schema() == before


@pytest.fixture
def agent() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Start an agent; return its URL and the list that collects the headers of its calls."""
    calls: list[dict[str, str]] = []

    class Agent(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            calls.append(dict(self.headers.items()))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Agent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/here", calls
        server.shutdown()
        thread.join()


def test_stored_secrets_are_still_sent(restored: Restored, agent: tuple[str, list[dict[str, str]]]) -> None:
    """Header values are read from key-value entries, and both signing secrets sign: the rotated one is still valid."""
    url, calls = agent

    async def call() -> int:
        settings = AgentSettings(allow_private=True)
        ms = Mainspring(restored.url, name="caller", history=HISTORY, agents=settings)
        async with ms.running():
            options = (await stored(ms, ms.get("agent"))).spec.options
            assert options is not None
            assert options.http is not None
            await ms.update("agent", task=HttpAgent(replace(options.http, url=url)))
            run = await ms.trigger("agent", payload={"n": 1})
            return (await run.result("30s")).status

    assert asyncio.run(call()) == 204
    (headers,) = calls
    assert (headers["Authorization"], headers["X-Tenant"]) == ("Bearer s3cret", "acme")
    assert len(headers["webhook-signature"].split()) == 2
