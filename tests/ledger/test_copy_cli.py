"""`mainspring copy`: what it prints, how it ends, what it refuses, and a process that is killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner, Result

from mainspring import Mainspring
from mainspring.app.task import Task
from mainspring.backends.postgres import PostgresStore
from mainspring.backends.sqlite.store import SqliteStore
from mainspring.cli.main import mainspring
from mainspring.ledger.verify import verify
from mainspring.ports.store import Offer, Store
from mainspring.testing.contract.factories import Ids, enqueue_change, make_run
from servers.for_tests import fresh_url
from tests.ledger.copy_history import THEN, make_history

T = TypeVar("T")


def cli(*words: str) -> Result:
    done = CliRunner().invoke(mainspring, ("copy", *words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def ask(store: Store, question: Callable[[Store], Awaitable[T]]) -> T:
    async def work() -> T:
        await store.open()
        try:
            return await question(store)
        finally:
            await store.close()

    return asyncio.run(work())


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("copy") / "a.db"
    ask(SqliteStore(path, synchronous="NORMAL"), make_history)
    return path


@pytest.fixture
def source(tmp_path: Path, history: Path) -> str:
    shutil.copy(history, tmp_path / "a.db")
    return f"sqlite:///{tmp_path / 'a.db'}"


def test_to_a_server_and_back(tmp_path: Path, source: str) -> None:
    server, back = fresh_url(), f"sqlite:///{tmp_path / 'back.db'}"
    there = cli(source, server)
    assert there.exit_code == 0, there.output
    lines = there.stdout.splitlines()
    assert lines[0].split() == ["source", "target"]
    counts = {words[0]: words[1:] for words in map(str.split, lines[1:8])}
    assert list(counts) == ["events", "runs", "schedules", "spans", "bodies", "gates", "tallies"]
    assert all(mine == theirs != "0" for mine, theirs in counts.values())
    assert lines[-2:] == [
        "2 runs were running: the first instance on the target rescues them",
        "ok: the stores are equal",
    ]
    assert "✕" not in there.stdout
    home = cli(server, back, "--json", "--page", "9")
    assert home.exit_code == 0, home.output
    answer = json.loads(home.stdout)
    assert answer["ok"] is True
    assert answer["differences"] == []
    assert answer["copied"] == {"resumed": 0, "events": answer["source"]["events"], "running": 2}
    assert answer["source"] == answer["target"]
    # Nothing is left to do, and calling it again does nothing.
    again = json.loads(cli(server, back, "--json").stdout)
    assert (again["ok"], again["copied"]["events"], again["target"]) == (True, 0, answer["target"])


def test_killed_in_the_middle_and_called_again(tmp_path: Path, source: str) -> None:
    async def more(store: Store) -> None:
        ids = Ids()
        await store.apply([enqueue_change(ids, make_run(ids, id=f"r{k}")) for k in range(300)], now=THEN)

    ask(SqliteStore(tmp_path / "a.db"), more)
    total = _events(tmp_path / "a.db")
    for attempt in range(20):  # on a busy machine it may be done before this process gets to kill it
        path = tmp_path / f"{attempt}.db"
        words = [sys.executable, "-m", "mainspring.cli.main", "copy", source, f"sqlite:///{path}"]
        process = subprocess.Popen([*words, "--page", "1"], stdout=subprocess.DEVNULL)
        try:
            while _events(path) < 5 and process.poll() is None:
                time.sleep(0.001)  # lets the other process work; what is waited for is the log
        finally:
            process.kill()
            process.wait()
        if _events(path) < total:
            break
    killed_at = _events(path)
    assert 5 <= killed_at < total
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["ok"] is True
    assert answer["copied"] == {"resumed": answer["copied"]["resumed"], "events": total - killed_at, "running": 2}
    assert answer["target"]["events"] == total
    again = cli(source, words[-1])
    assert again.exit_code == 0
    assert "0 events copied: the target had them all already" in again.stdout


def _events(path: Path) -> int:
    if not path.exists():
        return 0
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        count: int = connection.execute("SELECT count(*) FROM event").fetchone()[0]
    except sqlite3.OperationalError:  # no table yet, or being made
        return 0
    finally:
        connection.close()
    return count


# ── ends with 1 ─────────────────────────────────────────────────────────────


def tamper(url: str, sql: str) -> None:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    with connection:
        connection.execute(sql)
    connection.close()


@pytest.mark.tampers
def test_a_difference_is_shown_and_ends_with_1(tmp_path: Path, source: str) -> None:
    tamper(source, "DELETE FROM event WHERE rid = (SELECT max(rid) FROM run WHERE ended_at IS NOT NULL)")
    done = cli(source, f"sqlite:///{tmp_path / 'b.db'}")
    assert done.exit_code == 1
    (runs,) = (line.split() for line in done.stdout.splitlines() if line.startswith("runs"))
    assert int(runs[1]) == int(runs[2]) + 1
    assert runs[3] == "✕"
    assert "✕ runs, " in done.stdout


@pytest.mark.tampers
def test_a_source_that_does_not_verify_ends_with_1(tmp_path: Path, source: str) -> None:
    tamper(source, "UPDATE run SET failures = failures + 1 WHERE rid = (SELECT max(rid) FROM run)")
    done = cli(source, f"sqlite:///{tmp_path / 'b.db'}")
    assert done.exit_code == 1
    assert "✕ the stores are equal, but their rows differ from the log" in done.stdout


# ── refused ─────────────────────────────────────────────────────────────────


def test_bad_urls_are_told_and_create_nothing(tmp_path: Path, source: str) -> None:
    target = f"sqlite:///{tmp_path / 'b.db'}"
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "a.db")
    cases = [
        (source, source, 2, "TARGET: SOURCE and TARGET are the same store"),
        (source, f"sqlite:///{link}", 2, "TARGET: SOURCE and TARGET are the same store"),
        (source, f"sqlite:///{tmp_path}/./a.db?synchronous=normal", 2, "TARGET: SOURCE and TARGET are the same store"),
        ("mysql://host/db", target, 2, "SOURCE: 'mysql://' is not the scheme of a store"),
        (source, "sqlit:///b.db", 2, "TARGET: 'sqlit://' is not the scheme of a store. Did you mean 'sqlite'"),
        ("memory://", target, 2, "SOURCE: memory:// lives inside one process"),
        (source, "memory://", 2, "TARGET: memory:// lives inside one process"),
        (f"sqlite:///{tmp_path / 'none.db'}", target, 1, "none.db does not exist. Give the URL of the store to copy"),
        (source, f"sqlite:///{tmp_path / 'none' / 'b.db'}", 1, "does not exist. Create it: mkdir -p"),
    ]
    before = sorted(os.listdir(tmp_path))
    for one, other, code, words in cases:
        done = cli(one, other)
        assert (done.exit_code, words in done.stderr) == (code, True), (one, other, done.output)
        assert done.stderr.startswith("error: ")
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.tampers
def test_a_source_with_a_newer_schema_is_left_alone(tmp_path: Path, source: str) -> None:
    tamper(source, "PRAGMA user_version = 99")
    done = cli(source, f"sqlite:///{tmp_path / 'b.db'}")
    assert done.exit_code == 1
    assert "has schema 99" in done.stderr
    assert not (tmp_path / "b.db").exists()


def test_a_live_instance_on_the_source(tmp_path: Path, source: str) -> None:
    store = SqliteStore(source.removeprefix("sqlite:///"))
    ask(store, lambda store: store.lease("instance:w1", "w1", 3_600_000))
    target = tmp_path / "b.db"
    done = cli(source, f"sqlite:///{target}")
    assert (done.exit_code, target.exists()) == (1, False)
    assert "instance w1 works on the source. Stop it first" in done.stderr
    assert cli(source, f"sqlite:///{target}", "--force").exit_code == 0


def test_a_target_that_is_not_empty(tmp_path: Path, source: str) -> None:
    shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    before = (tmp_path / "b.db").read_bytes()
    done = cli(source, f"sqlite:///{tmp_path / 'b.db'}")
    assert done.exit_code == 1
    assert "the target is not empty" in done.stderr
    assert (tmp_path / "b.db").read_bytes() == before


def test_a_server_without_a_store_is_no_source(tmp_path: Path) -> None:
    url = fresh_url()
    for _ in range(2):  # looking made nothing
        done = cli(url, f"sqlite:///{tmp_path / 'b.db'}")
        assert done.exit_code == 1
        assert "does not exist. Give the URL of the store to copy from" in done.stderr
    assert not (tmp_path / "b.db").exists()
    ask(PostgresStore(url), lambda store: asyncio.sleep(0))
    empty = cli(url, f"sqlite:///{tmp_path / 'b.db'}")
    assert (empty.exit_code, "0 events copied" in empty.stdout) == (0, True)


def test_the_application_goes_on_where_it_was(tmp_path: Path) -> None:
    """Nothing in the program changes but the URL: what waited and what ran when it stopped is done on the target."""
    done: list[str] = []

    def program(url: str) -> tuple[Mainspring, Task[[str], None]]:
        ms = Mainspring(url, lease_ttl="5s")

        @ms.task
        async def note(word: str) -> None:
            done.append(word)

        return ms, note

    here, there = f"sqlite:///{tmp_path / 'a.db'}", fresh_url()
    ms, note = program(here)
    for word in ("one", "two", "three"):
        note.sync.enqueue(word)
    ms.sync.close()
    # One of them is taken by a worker that is never heard of again.
    offer = Offer("gone", ("default/default",), (note.name,), 3_600_000)
    assert len(ask(SqliteStore(tmp_path / "a.db"), lambda store: store.claim(offer, 1)).claims) == 1
    assert cli(here, there).exit_code == 0
    ms, note = program(there)
    note.sync.enqueue("four")
    ms.run(until_idle=True)
    assert sorted(done) == ["four", "one", "three", "two"]
    report = ask(PostgresStore(there), verify)
    assert (report.ok, report.runs) == (True, 4)
