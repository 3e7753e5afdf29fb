"""The schema as numbered scripts. The first `open` creates it; only `mainspring migrate` changes it later."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

import asyncpg
from msgspec import Struct

from mainspring.model.errors import SchemaMismatch

#: A script that begins with this line cannot run inside a transaction. It may stop halfway and run again, so a repeated
#: run must have the same result.
OUTSIDE_TRANSACTION = "-- outside a transaction"
#: Limit for one statement of a migration, in seconds: building an index over a long history takes hours.
_MIGRATION_STATEMENT_SECONDS = 86_400.0

_TABLE = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE §migration (
    number      integer PRIMARY KEY,
    name        text NOT NULL,
    began_at    timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
"""
#: Parameter: schema. Takes the lock under which a schema is created or migrated, until the transaction ends.
_LOCK_TIMEOUT_MS = "SELECT pg_advisory_xact_lock(hashtextextended('mainspring:' || $1, 0))"
#: Parameter: schema. Returns the number of all its tables and views, and 1 if our table `migration` is one of them.
_TABLES = """
SELECT count(*) AS tables, count(*) FILTER (WHERE c.relname = 'migration') AS ours
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm')
"""


class Script(Struct, frozen=True):
    """A migration script: one numbered step of the schema."""

    number: int
    name: str
    sql: str

    @property
    def runs_outside_transaction(self) -> bool:
        return self.sql.startswith(OUTSIDE_TRANSACTION)


class SchemaState(Struct, frozen=True):
    """Whether a store's schema exists, and the numbers of the migration scripts that finished in it or only began."""

    exists: bool
    finished: frozenset[int] = frozenset()
    unfinished: frozenset[int] = frozenset()

    @property
    def newest(self) -> int:
        """The greatest number of a script that finished or began, 0 without one."""
        return max(self.finished | self.unfinished, default=0)


def scripts() -> list[Script]:
    """Return all migration scripts of this version of Mainspring, in the order of their numbers."""
    folder = resources.files("mainspring.backends.postgres") / "sql"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [Script(int(f.name[:4]), f.name[5:-4], f.read_text(encoding="utf-8")) for f in files]


async def read_state(connection: asyncpg.Connection, schema: str) -> SchemaState:
    """Return which scripts ran in a schema. Raises `SchemaMismatch` if it holds only tables of another program.

    A schema without any table counts as missing.
    """
    name = f'"{schema}"'
    tables, ours = await connection.fetchrow(
        _TABLES, schema
    )  # one query for both counts: another instance may be creating them now
    if not ours:
        if tables:
            raise SchemaMismatch(
                f"schema {schema!r} holds {tables} tables of something else; it was left as it is. "
                "Give another one with ?schema="
            )
        return SchemaState(exists=False)
    rows = await connection.fetch(f"SELECT number, finished_at IS NOT NULL FROM {name}.migration")  # noqa: S608
    return SchemaState(
        exists=True,
        finished=frozenset(number for number, done in rows if done),
        unfinished=frozenset(number for number, done in rows if not done),
    )


def pending(state: SchemaState) -> list[Script]:
    """Return the scripts that have not finished. Raises `SchemaMismatch` if the schema is of a newer Mainspring."""
    known = scripts()
    if state.newest > known[-1].number:
        raise SchemaMismatch(
            f"the database has schema {state.newest}, this Mainspring knows up to {known[-1].number}. "
            "Upgrade Mainspring; the database was left as it is"
        )
    return [script for script in known if script.number not in state.finished]


def refuse(state: SchemaState, url: str) -> SchemaMismatch | None:
    """Return the error for a schema that needs a migration, with the command to run; None if it is up to date.

    `url`: the store's URL for the command. Raises: `SchemaMismatch` if a newer Mainspring made the schema.
    """
    left = pending(state)
    if not left:
        return None
    newest = scripts()[-1].number
    command = f"Run: mainspring migrate --store {url}"
    if state.unfinished or left[0].number < state.newest:
        which = ", ".join(str(script.number) for script in left)
        return SchemaMismatch(f"the database is half migrated: step {which} of {newest} is not finished. {command}")
    return SchemaMismatch(f"the database has schema {state.newest}, this Mainspring needs {newest}. {command}")


async def create(connection: asyncpg.Connection, schema: str) -> None:
    """Create the schema by all scripts in one transaction, unless another instance created it meanwhile."""
    async with connection.transaction():
        await connection.execute(_LOCK_TIMEOUT_MS, schema)
        if (await read_state(connection, schema)).exists:
            return
        place = schema_qualifier(schema)
        await connection.execute(place(_TABLE))
        for script in scripts():
            assert not script.runs_outside_transaction, "a new database needs no script that runs outside a transaction"
            await connection.execute(place(script.sql))
            await _finish(connection, script, place)


async def migrate(connection: asyncpg.Connection, schema: str) -> list[Script]:
    """Run the scripts that have not finished, each in its own transaction or outside one; return those that ran.

    If the schema is missing, create it and return all scripts. Concurrent calls run each script once, except scripts
    that run outside a transaction.
    """
    ran: list[Script] = []
    if not (await read_state(connection, schema)).exists:
        await create(connection, schema)
        return scripts()
    place = schema_qualifier(schema)
    for script in pending(await read_state(connection, schema)):
        if script.runs_outside_transaction:
            await connection.execute(place(_BEGAN), script.number, script.name)
            for statement in script.sql.split(";\n"):
                if statement.strip():
                    await connection.execute(place(statement), timeout=_MIGRATION_STATEMENT_SECONDS)
            await _finish(connection, script, place)
        else:
            async with connection.transaction():
                await connection.execute(_LOCK_TIMEOUT_MS, schema)
                if script.number in (await read_state(connection, schema)).finished:
                    continue
                await connection.execute(place(script.sql), timeout=_MIGRATION_STATEMENT_SECONDS)
                await _finish(connection, script, place)
        ran.append(script)
    return ran


_BEGAN = "INSERT INTO §migration (number, name) VALUES ($1, $2) ON CONFLICT DO NOTHING"
_FINISHED = """
INSERT INTO §migration (number, name, finished_at) VALUES ($1, $2, now())
ON CONFLICT (number) DO UPDATE SET finished_at = now()
"""


async def _finish(connection: asyncpg.Connection, script: Script, place: Callable[[str], str]) -> None:
    """Record that a script has finished; `place` puts the schema's name into a statement."""
    await connection.execute(place(_FINISHED), script.number, script.name)


def sql_text(state: SchemaState, schema: str) -> str:
    """Return the SQL that `migrate` would run now, to be run by hand; '' if nothing is to do.

    Raises: `SchemaMismatch` if a newer Mainspring made the schema.
    """
    place = schema_qualifier(schema)
    parts = [] if state.exists else [place(_TABLE).strip()]
    for script in pending(state):
        done = (
            f"INSERT INTO §migration (number, name, finished_at) VALUES ({script.number}, '{script.name}', now())\n"  # noqa: S608
            "ON CONFLICT (number) DO UPDATE SET finished_at = now();"
        )
        body = f"{script.sql.strip()}\n\n{done}"
        body = body if script.runs_outside_transaction else f"BEGIN;\n\n{body}\n\nCOMMIT;"
        parts.append(f"-- step {script.number}: {script.name}\n{place(body)}")
    return "\n\n".join(parts)


def schema_qualifier(schema: str) -> Callable[[str], str]:
    """Return a function that returns a statement with the schema's name in place of each § and {schema}."""
    name = f'"{schema}"'
    return lambda sql: sql.replace("§", f"{name}.").replace("{schema}", name)
