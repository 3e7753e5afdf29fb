"""Files of earlier schemas are brought up to date in place, with everything in them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from mainspring.backends.sqlite import SqliteStore
from mainspring.backends.sqlite.schema import APPLICATION_ID, load_migrations, split_statements
from mainspring.model.gate import Gate
from mainspring.ports.store import Gates, Runs
from mainspring.testing.contract.factories import (
    T0,
    Ids,
    create_schedule_change,
    enqueue_change,
    fire_run,
    make_run,
    make_schedule,
)


async def test_a_file_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    path.touch(0o600)
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in split_statements(load_migrations()[0]):
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
    assert store._db.value("PRAGMA user_version") == len(load_migrations()) == 12
    await store.close()
    await store.open()
    assert await store.find(Runs()) == kept
    await store.close()


@pytest.mark.tampers
async def test_gates_of_an_earlier_schema_keep_their_limits_and_holders(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    path.touch(0o600)
    connection = sqlite3.connect(path, isolation_level=None)
    for migration in load_migrations()[:7]:
        for statement in split_statements(migration):
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


@pytest.mark.tampers
async def test_fires_of_an_earlier_schema_are_still_unique(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    ids = Ids()
    schedule = make_schedule(ids)
    fire = fire_run(schedule, T0)
    store = SqliteStore(path)
    await store.open()
    await store.apply([create_schedule_change(ids, schedule)], now=T0)
    await store.apply([enqueue_change(ids, fire)], now=T0)
    await store.close()
    connection = sqlite3.connect(path, isolation_level=None)
    for table in ("run_log", "log_line", "log_total"):  # added by later migrations
        connection.execute(f"DROP TABLE {table}")
    connection.execute("ALTER TABLE schedule DROP COLUMN rewound")
    connection.execute("DROP INDEX run_fire")
    connection.execute("CREATE UNIQUE INDEX run_fire ON run (schedule_id, fire_key) WHERE schedule_id IS NOT NULL")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    await store.open()
    assert store._db.value("PRAGMA user_version") == len(load_migrations())
    again = await store.apply([enqueue_change(ids, replace(fire, id=ids.next()))], now=T0)
    assert [result.status for result in again.results] == ["refused"]
    assert [run.id for run in await store.find(Runs())] == [fire.id]
    await store.close()
