"""A schema with bytes that are not UTF-8: SQLite repeats them in its error text, which sqlite3 then cannot decode."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from mainspring.backends.sqlite import SqliteStore
from mainspring.backends.sqlite.wal_checkpoints import WalCheckpoints
from mainspring.model.errors import StoreCorrupt
from mainspring.ports.store import Runs
from mainspring.testing.contract.factories import Ids, enqueue_change, make_run

#: The files are damaged on purpose, so `events verify` is not run after these tests.
pytestmark = pytest.mark.tampers
REFUSAL = "is damaged or is not a SQLite database .*malformed database schema.*left as it is"


async def new_store(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    return store


def damage_schema(path: Path) -> None:
    """Write a statement that SQLite cannot parse into the schema, and make open connections read the schema again."""
    connection = sqlite3.connect(path, isolation_level=None)
    version = connection.execute("PRAGMA schema_version").fetchone()[0]
    connection.execute("PRAGMA writable_schema = ON")
    statement = b"CREATE INDE\xff run_body ON run (body)"
    connection.execute("UPDATE sqlite_master SET sql = CAST(? AS TEXT) WHERE name = 'run_body'", (statement,))
    connection.execute(f"PRAGMA schema_version = {version + 1}")
    connection.close()


async def test_open_refuses_the_file_and_leaves_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    await (await new_store(path)).close()
    damage_schema(path)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match=REFUSAL) as refusal:
        await SqliteStore(path).open()
    assert str(path) in str(refusal.value)
    assert "INDE\ufffd" in str(refusal.value)
    assert path.read_bytes() == before


async def test_a_read_of_a_store_that_is_open_is_refused(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "ledger.db")
    damage_schema(tmp_path / "ledger.db")
    with pytest.raises(StoreCorrupt, match=REFUSAL):
        await store.find(Runs())
    await store.close()


async def test_a_write_of_a_store_that_is_open_is_refused(tmp_path: Path) -> None:
    store = await new_store(tmp_path / "ledger.db")
    damage_schema(tmp_path / "ledger.db")
    ids = Ids()
    with pytest.raises(StoreCorrupt, match=REFUSAL):
        await store.apply([enqueue_change(ids, make_run(ids))])
    await store.close()


async def test_a_checkpoint_of_a_damaged_file_does_not_end_its_thread(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    await (await new_store(path)).close()
    damage_schema(path)
    checkpoints = WalCheckpoints(str(path), threading.Lock())
    checkpoints._checkpoint()
    checkpoints.end()
