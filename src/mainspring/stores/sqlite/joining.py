"""Births inside a caller's own transaction, on its own `sqlite3.Connection` to the same file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from typing import Any

from mainspring.model.errors import InvalidInput
from mainspring.stores.sqlite.database import Database


class GuestDatabase(Database):
    """The caller's connection in the place of ours: its transaction, its errors, its durability."""

    def __init__(self, home: Database, connection: sqlite3.Connection) -> None:
        super().__init__(home.path, home.clock, "FULL", False, None)
        self._connection = connection

    @property
    def connection(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """The caller's rows may be of any kind, ours are tuples; its errors stay as they are."""
        connection = self.connection
        factories = connection.row_factory, connection.text_factory
        connection.row_factory, connection.text_factory = None, str
        try:
            yield
        finally:
            connection.row_factory, connection.text_factory = factories

    @contextlib.contextmanager
    def write(self, verb: str) -> Iterator[None]:
        """All of it or nothing, inside the caller's transaction: begun as its next INSERT would, or ended at once."""
        connection = self.connection
        with self.read():
            alone = not connection.in_transaction
            if alone:
                connection.execute("BEGIN IMMEDIATE")
            connection.execute("SAVEPOINT mainspring")
            try:
                yield
                connection.execute("RELEASE mainspring")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK TO mainspring")
                    connection.execute("RELEASE mainspring")
                    if alone:
                        connection.execute("ROLLBACK")
                raise
            if alone and _commits_by_itself(connection):
                connection.execute("COMMIT")


def guest(home: Database, connection: Any) -> GuestDatabase:
    """The caller's connection, if it is one to the store's own file."""
    if not isinstance(connection, sqlite3.Connection):
        name = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise InvalidInput(
            "connection", f"{name} cannot be joined by a SQLite store", "Give a sqlite3.Connection to its file"
        )
    try:
        cursor = connection.cursor()
        cursor.row_factory = None
        rows = cursor.execute("PRAGMA database_list").fetchall()
    except sqlite3.ProgrammingError as error:
        raise InvalidInput(
            "connection", str(error).rstrip("."), "Give an open one, on the thread that made it"
        ) from error
    path = next((row[2] for row in rows if row[1] == "main"), "")
    with contextlib.suppress(OSError):
        if os.path.samefile(path, home.path):
            return GuestDatabase(home, connection)
    raise InvalidInput(
        "connection",
        f"it is open on {path or 'no file'}, and the store is {os.path.abspath(home.path)}",
        "Give a connection to the store's own file",
    )


def _commits_by_itself(connection: sqlite3.Connection) -> bool:
    """True when the caller's own INSERT would have been committed at once."""
    mode = getattr(connection, "autocommit", -1)  # Python 3.12; -1 is the old way
    return mode is True or (mode in (-1, None) and connection.isolation_level is None)
