"""Enqueue inside the caller's own transaction on SQLite, and the stores that cannot."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.model.errors import InvalidInput, UnknownRun


def app(url: str) -> tuple[Mainspring, Any, list[str]]:
    ms = Mainspring(url)
    did: list[str] = []

    @ms.task(limit=2)
    def send(customer: str) -> str:
        did.append(customer)
        return customer

    return ms, send, did


def test_commit_rollback_and_a_unique_key(tmp_path: Path) -> None:
    ms, send, did = app(f"sqlite:///{tmp_path}/a.db")
    held = send.using(unique="held").sync.enqueue("held")
    with closing(sqlite3.connect(tmp_path / "a.db")) as db:
        db.row_factory = lambda cursor, row: {
            column[0]: value for column, value in zip(cursor.description, row, strict=True)
        }
        gone = send.sync.enqueue("never", connection=db)
        assert db.in_transaction
        db.rollback()
        db.execute("CREATE TABLE orders (customer TEXT)")
        db.execute("INSERT INTO orders VALUES ('acme')")
        run = send.sync.enqueue("acme", connection=db)
        refused = send.using(unique="held").sync.enqueue("again", connection=db)
        many = send.using(connection=db).sync.enqueue_many([("b",), ("c",)])
        assert (refused.id, refused.created) == (held.id, False)
        with pytest.raises(UnknownRun):
            run.run()
        db.commit()
        assert db.execute("SELECT customer FROM orders").fetchall() == [{"customer": "acme"}]
    ms.run(until_idle=True)
    assert sorted(did) == ["acme", "b", "c", "held"]
    assert [handle.result() for handle in many] == ["b", "c"]
    with pytest.raises(UnknownRun):
        gone.run()
    ms.sync.close()


async def test_a_running_worker_finds_the_run_after_the_commit(tmp_path: Path) -> None:
    ms, send, did = app(f"sqlite:///{tmp_path}/a.db")
    async with ms.running():
        await send.enqueue("first")
        with closing(sqlite3.connect(tmp_path / "a.db")) as db:
            run = await send.enqueue("acme", connection=db)
            assert "acme" not in did
            db.commit()
            assert await run.result(timeout="20s") == "acme"
    await ms.close()


def test_savepoints_and_autocommit_connections_work(tmp_path: Path) -> None:
    ms, send, _ = app(f"sqlite:///{tmp_path}/a.db")
    send.sync.enqueue("first")
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as db:
        now = send.sync.enqueue("now", connection=db)
        assert not db.in_transaction
        assert now.run().task == send.name
        db.execute("BEGIN")
        db.execute("SAVEPOINT mine")
        gone = send.sync.enqueue("gone", connection=db)
        db.execute("ROLLBACK TO mine")
        kept = send.sync.enqueue("kept", connection=db)
        db.execute("COMMIT")
    assert kept.run().task == send.name
    with pytest.raises(UnknownRun):
        gone.run()
    ms.sync.close()


def test_connections_that_cannot_be_joined_are_refused(tmp_path: Path) -> None:
    ms, send, _ = app(f"sqlite:///{tmp_path}/a.db")
    with (
        closing(sqlite3.connect(tmp_path / "b.db")) as other,
        pytest.raises(InvalidInput, match=r"b\.db, and the store"),
    ):
        send.sync.enqueue("acme", connection=other)
    with closing(sqlite3.connect(":memory:")) as other, pytest.raises(InvalidInput, match="open on no file"):
        send.sync.enqueue("acme", connection=other)
    with pytest.raises(InvalidInput, match=r"connection: Cannot operate on a closed database\. Give an open one"):
        send.sync.enqueue("acme", connection=other)
    with pytest.raises(InvalidInput, match=r"builtins\.object cannot be joined by a SQLite store"):
        send.sync.enqueue("acme", connection=object())
    ms.sync.close()
    memory, send, _ = app("memory://")
    with pytest.raises(InvalidInput, match=r"MemoryStore cannot join .* Use a postgresql:// or sqlite:/// store"):
        send.sync.enqueue("acme", connection=object())
    memory.sync.close()


def test_a_task_parameter_named_connection_is_passed_to_the_task(tmp_path: Path) -> None:
    ms = Mainspring(f"sqlite:///{tmp_path}/a.db")
    seen: list[str] = []

    @ms.task
    def dial(connection: str) -> None:
        seen.append(connection)

    dial.sync.enqueue(connection="modem")
    with closing(sqlite3.connect(tmp_path / "a.db")) as db:
        dial.using(connection=db).sync.enqueue("isdn")
        db.commit()
    ms.run(until_idle=True)
    assert sorted(seen) == ["isdn", "modem"]
