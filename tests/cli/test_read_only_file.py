"""Commands that only read need no right to write the file of a SQLite store."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.backends.sqlite import SqliteStore
from mainspring.model.errors import SchemaMismatch, StoreError, StoreReadOnly
from mainspring.ports.store import Events

#: Calls the command line as a user who may read the file and nothing more.
AS_READER = """
import os, sys
from click.testing import CliRunner
from mainspring.cli.main import mainspring

if os.getuid() == 0:
    CliRunner().invoke(mainspring, sys.argv[1:])  # imports what the other user may not read
    os.setgid(65534)
    os.setuid(65534)
mainspring()
"""


def cli(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAINSPRING_")}
    command = [sys.executable, "-c", AS_READER, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=folder, env=env)


@pytest.fixture
def db() -> Iterator[Path]:
    """A place that other users can reach: pytest closes its own folders to them whenever a session starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "x.db"


@pytest.mark.parametrize("words", [("ledger",), ("workers", "--all"), ("events", "list"), ("events", "verify")])
async def test_a_reader_needs_no_right_to_write_while_a_program_runs(db: Path, words: tuple[str, ...]) -> None:
    ms = Mainspring(f"sqlite:///{db}?shared=1")

    @ms.task
    async def work() -> None: ...

    async with ms.running():
        await (await work.enqueue()).result(timeout=20)
        for path in db.parent.iterdir():
            path.chmod(0o444)
        db.parent.chmod(0o555)
        done = cli(*words, "--store", f"sqlite:///{db}?shared=1", folder=db.parent)
        for path in db.parent.iterdir():
            path.chmod(0o600)
        db.parent.chmod(0o755)
    await ms.close()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_a_file_that_no_program_has_open_is_refused_with_the_reason(db: Path) -> None:
    ms = Mainspring(f"sqlite:///{db}?shared=1")
    ms.task(name="t")(lambda: None)
    ms.tasks["t"].sync.enqueue()
    ms.sync.close()
    db.chmod(0o444)
    db.parent.chmod(0o555)
    done = cli("ledger", "--store", f"sqlite:///{db}?shared=1", folder=db.parent)
    db.parent.chmod(0o755)
    db.chmod(0o600)
    assert done.returncode == 1
    assert "because no program has it open" in done.stderr
    assert [path.name for path in db.parent.iterdir()] == ["x.db"]


async def test_a_read_only_store_reads_and_refuses_to_write(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with pytest.raises(StoreError):
        await SqliteStore(path, read_only=True).open()
    assert not path.exists()
    ms = Mainspring(f"sqlite:///{path}")
    ms.task(name="t")(lambda: None)
    await ms.tasks["t"].enqueue()
    store = SqliteStore(path, read_only=True)
    await store.open()
    assert len(await store.find(Events(limit=10))) == 1
    with pytest.raises(StoreReadOnly):
        await store.lease("x", "me", 1_000)
    await store.close()
    await ms.close()


async def test_a_read_only_store_is_not_migrated(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    store = SqliteStore(path)
    await store.open()
    newest = store._db.value("PRAGMA user_version")
    store._db.run("PRAGMA user_version = 1")
    await store.close()
    with pytest.raises(SchemaMismatch, match="must be migrated"):
        await SqliteStore(path, read_only=True).open()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {newest}")
    connection.close()
