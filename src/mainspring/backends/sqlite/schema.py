"""The file's schema: its application id, version and migrations. Also ends leases from before the machine's restart."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from importlib import resources

from mainspring.backends.sqlite.errors import STATEMENT_ERRORS, damage_refusal
from mainspring.model.errors import SchemaMismatch, StoreCorrupt

#: SQLite's `application_id` in the file's header, here "MSPR": it shows that the database is Mainspring's.
APPLICATION_ID = 0x4D535052


def read_version(connection: sqlite3.Connection, path: str, newest: int) -> int:
    """Return the schema version of a file, 0 for a new one. Writes nothing.

    Raises: `SchemaMismatch` if the version is above `newest`, the number of migrations that this program knows;
    `StoreCorrupt` if the file is damaged or is another application's database. `path` is for the error texts.
    """
    alone = not connection.in_transaction
    if alone:  # the three reads must see one state of the file: another process may be creating the schema right now
        connection.execute("BEGIN")
    try:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    finally:
        if alone:
            roll_back(connection)
    path = os.path.abspath(path)
    if application == APPLICATION_ID:
        if version > newest:
            raise SchemaMismatch(
                f"{path} has schema {version}, this Mainspring knows up to {newest}. Upgrade Mainspring; "
                "the file was left as it is"
            )
        if version < 1 and tables:
            raise damage_refusal(path, f"it has {tables} tables and indexes and claims to have schema {version}")
        return version
    if application or version or tables:
        raise StoreCorrupt(
            f"{path} is a SQLite database of another application (id {application:#x}, {tables} tables and "
            "indexes); it was left as it is. Give another path"
        )
    return 0


def migrate(connection: sqlite3.Connection, path: str, scripts: list[str]) -> None:
    """Run those of `scripts` (all migrations, in order) that the file does not have yet, in one transaction.

    The transaction also writes the new version and Mainspring's application id into the file's header. Raises:
    `SchemaMismatch` if the file's version is above the number of scripts, `StoreCorrupt` if it is not Mainspring's.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = read_version(connection, path, len(scripts))  # another process may have migrated meanwhile
        for number, script in enumerate(scripts[version:], version + 1):
            for statement in split_statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def end_leases_of_other_boots(connection: sqlite3.Connection, boot_id: str) -> None:
    """Store `boot_id`, the id of the machine's present boot. If another id was stored, end all leases (runs and named).

    Why: the ends of leases are stored in boot time, which begins at 0 with each restart of the machine. So the end of a
    lease that was written before the restart means nothing.
    """
    known = "SELECT value FROM meta WHERE key = 'boot_id'"
    if connection.execute(known).fetchone() == (boot_id,):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        stored = connection.execute(known).fetchone()
        if stored is not None and stored != (boot_id,):
            connection.execute("UPDATE run SET lease_until = 0 WHERE state = 'running'")
            connection.execute("UPDATE lease SET live = 0")
        connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('boot_id', ?)", (boot_id,))
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    """Roll back the open transaction, if there is one. An error of the rollback itself is not reported."""
    if connection.in_transaction:
        with contextlib.suppress(*STATEMENT_ERRORS):
            connection.execute("ROLLBACK")


def read_boot_id() -> str:
    """Return the id that the kernel gave to the machine's present boot, "unknown" if it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def load_migrations() -> list[str]:
    """Return the numbered SQL scripts in order; the schema version is the number of scripts that were run."""
    folder = resources.files("mainspring.backends.sqlite") / "sql"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [file.read_text(encoding="utf-8") for file in files]


def split_statements(script: str) -> Iterator[str]:
    """Yield the statements of an SQL script."""
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            yield text
            text = ""
