"""Files of earlier schemas are brought up to date in place, with everything in them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from mainspring.model.gate import Gate
from mainspring.ports.store import Gates, Runs
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite.database import APPLICATION_ID, _migrations, _statements
from mainspring.testing.factories import Ids, enqueue_change, make_run


async def test_a_file_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in _statements(_migrations()[0]):
        connection.execute(statement)
    connection.execute("PRAGMA user_version = 1")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.close()
    store = SqliteStore(path)
    ids = Ids()
    await store.open()
    await store.apply([enqueue_change(ids, make_run(ids)) for _ in range(3)])
    kept = await store.find(Runs())
    indexes = {name for (name,) in store._db.run("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert {"event_note", "schedule_deleted"} <= indexes
    assert store._db.value("PRAGMA user_version") == len(_migrations()) == 9
    await store.close()
    await store.open()
    assert await store.find(Runs()) == kept
    await store.close()


@pytest.mark.tampers
async def test_gates_of_an_earlier_schema_keep_their_limits_and_who_holds_them(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None)
    for migration in _migrations()[:7]:
        for statement in _statements(migration):
            connection.execute(statement)
    gates = [("closed", 2, 0, 99), ("free", 1, 0, 0), ("held", 3, 2, 0)]
    connection.executemany("INSERT INTO gate (name, max, held, closed_until) VALUES (?, ?, ?, ?)", gates)
    connection.execute("PRAGMA user_version = 7")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.close()
    store = SqliteStore(path)
    await store.open()
    assert await store.find(Gates()) == [Gate(*gate) for gate in gates]
    await store.close()
