"""New runs inside a caller's transaction, on the caller's `sqlite3.Connection` to the store's file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from typing import Any

from mainspring.backends.sqlite.database import Database
from mainspring.model.errors import InvalidInput


class CallerDatabase(Database):
    """A `Database` on the caller's connection, so that a change becomes a part of the caller's transaction.

    The caller commits, unless the connection commits each statement by itself; the caller chooses how durable that is.
    `home`: the store's own `Database`.
    """

    def __init__(self, home: Database, connection: sqlite3.Connection) -> None:
        super().__init__(home.path, home.clock, "FULL", False, None)
        self._connection = connection

    @property
    def connection(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Let a `with` block execute statements with sqlite3's default row and text types.

        Types that the caller has set on the connection are set again afterwards. Errors reach the caller as sqlite3
        raises them.
        """
        connection = self.connection
        factories = connection.row_factory, connection.text_factory
        connection.row_factory, connection.text_factory = None, str
        try:
            yield
        finally:
            connection.row_factory, connection.text_factory = factories

    @contextlib.contextmanager
    def write(self, verb: str) -> Iterator[None]:
        """Let a `with` block execute statements in a savepoint of the caller's transaction.

        After any exception, none of them has an effect. If the caller has no open transaction, one is begun. Whether it
        is then committed or left open follows from the connection's settings, as it would for an INSERT of the caller.
        `verb` is not used.
        """
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


def adapt_connection(home: Database, connection: Any) -> CallerDatabase:
    """Return a `CallerDatabase` on the caller's connection. `home` is the store's own `Database`.

    Raises: `InvalidInput` unless the connection is a `sqlite3.Connection` that is open on the store's own file.
    """
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
            return CallerDatabase(home, connection)
    raise InvalidInput(
        "connection",
        f"it is open on {path or 'no file'}, and the store is {os.path.abspath(home.path)}",
        "Give a connection to the store's own file",
    )


def _commits_by_itself(connection: sqlite3.Connection) -> bool:
    """Return True if sqlite3 would commit an INSERT of the caller at once, by the settings of the connection."""
    mode = getattr(connection, "autocommit", -1)  # new in Python 3.12; -1 means that isolation_level decides
    return mode is True or (mode in (-1, None) and connection.isolation_level is None)
