"""The schema as numbered scripts. The first `open` creates the schema; only `mainspring migrate` changes it later."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

import asyncpg
from msgspec import Struct

from mainspring.model.errors import SchemaMismatch

#: A script that begins with this line cannot run inside a transaction. If it stopped halfway, it runs again from its
#: first statement, so each of its statements must be repeatable.
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
#: Parameter: schema. Takes the advisory lock under which a schema is created or migrated, until the transaction ends.
_LOCK_SCHEMA = "SELECT pg_advisory_xact_lock(hashtextextended('mainspring:' || $1, 0))"
#: Parameter: schema. Returns the number of all its tables and views, and 1 if Mainspring's table `migration` is one of
#: them, else 0.
_TABLES = """
SELECT count(*) AS tables, count(*) FILTER (WHERE c.relname = 'migration') AS ours
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm')
"""


class Script(Struct, frozen=True):
    """A migration script: the SQL that takes the schema from one version, or from nothing, to the version `number`."""

    number: int
    name: str
    sql: str

    @property
    def runs_outside_transaction(self) -> bool:
        """True if the script begins with OUTSIDE_TRANSACTION: then each of its statements commits by itself."""
        return self.sql.startswith(OUTSIDE_TRANSACTION)


class SchemaState(Struct, frozen=True):
    """Whether a store's schema exists, and which migration scripts ran in it, by number.

    `finished`: scripts that ran to their end. `unfinished`: scripts that began and did not reach their end.
    """

    exists: bool
    finished: frozenset[int] = frozenset()
    unfinished: frozenset[int] = frozenset()

    @property
    def newest(self) -> int:
        """The greatest number of a script that finished or began; 0 if there is none."""
        return max(self.finished | self.unfinished, default=0)


def load_scripts() -> list[Script]:
    """Return all migration scripts of this version of Mainspring, in the order of their numbers."""
    folder = resources.files("mainspring.backends.postgres") / "sql"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [Script(int(f.name[:4]), f.name[5:-4], f.read_text(encoding="utf-8")) for f in files]


async def read_state(connection: asyncpg.Connection, schema: str) -> SchemaState:
    """Return whether a schema exists and which scripts ran in it; without any table it counts as missing.

    Raises: `SchemaMismatch` if the schema has tables, but not Mainspring's table `migration`; the driver's errors.
    """
    name = f'"{schema}"'
    # One query for both counts, because another instance may be creating the tables now.
    tables, ours = await connection.fetchrow(_TABLES, schema)
    if not ours:
        if tables:
            raise SchemaMismatch(
                f"schema {schema!r} has no tables of Mainspring, but {tables} of another program; nothing was changed. "
                "Give another schema with ?schema="
            )
        return SchemaState(exists=False)
    rows = await connection.fetch(f"SELECT number, finished_at IS NOT NULL FROM {name}.migration")  # noqa: S608
    return SchemaState(
        exists=True,
        finished=frozenset(number for number, done in rows if done),
        unfinished=frozenset(number for number, done in rows if not done),
    )


def find_pending(state: SchemaState) -> list[Script]:
    """Return the scripts that still have to run in a schema, in the order of their numbers.

    A script that began and did not finish is one of them. For a missing schema, these are all scripts. Raises:
    `SchemaMismatch` if a newer Mainspring made the schema.
    """
    known = load_scripts()
    if state.newest > known[-1].number:
        raise SchemaMismatch(
            f"the database has schema {state.newest}, this Mainspring knows up to {known[-1].number}. "
            "Upgrade Mainspring; the database was left as it is"
        )
    return [script for script in known if script.number not in state.finished]


def find_refusal(state: SchemaState, url: str) -> SchemaMismatch | None:
    """Return the error for a schema that needs a migration, with the command to run; None if it is up to date.

    `url`: the store's URL as the command in the error text shows it. Raises: `SchemaMismatch` if a newer Mainspring
    made the schema.
    """
    left = find_pending(state)
    if not left:
        return None
    newest = load_scripts()[-1].number
    command = f"Run: mainspring migrate --store {url}"
    if state.unfinished or left[0].number < state.newest:
        which = ", ".join(str(script.number) for script in left)
        return SchemaMismatch(f"the database is half migrated: step {which} of {newest} is not finished. {command}")
    return SchemaMismatch(f"the database has schema {state.newest}, this Mainspring needs {newest}. {command}")


async def create(connection: asyncpg.Connection, schema: str) -> None:
    """Create the schema by running all scripts in one transaction; do nothing if another instance has created it."""
    async with connection.transaction():
        await connection.execute(_LOCK_SCHEMA, schema)
        if (await read_state(connection, schema)).exists:
            return
        place = schema_qualifier(schema)
        await connection.execute(place(_TABLE))
        for script in load_scripts():
            assert not script.runs_outside_transaction, "a new database needs no script that runs outside a transaction"
            await connection.execute(place(script.sql))
            await _finish(connection, script, place)


async def migrate(connection: asyncpg.Connection, schema: str) -> list[Script]:
    """Run the scripts that still have to run, each in its own transaction or outside one; return the scripts that ran.

    If the schema is missing, create it and return all scripts. When two processes migrate at the same time, each script
    runs once, except a script that runs outside a transaction: it may run twice. Raises: `SchemaMismatch` if a newer
    Mainspring made the schema; the driver's errors.
    """
    ran: list[Script] = []
    if not (await read_state(connection, schema)).exists:
        await create(connection, schema)
        return load_scripts()
    place = schema_qualifier(schema)
    for script in find_pending(await read_state(connection, schema)):
        if script.runs_outside_transaction:
            await connection.execute(place(_BEGAN), script.number, script.name)
            for statement in script.sql.split(";\n"):
                if statement.strip():
                    await connection.execute(place(statement), timeout=_MIGRATION_STATEMENT_SECONDS)
            await _finish(connection, script, place)
        else:
            async with connection.transaction():
                await connection.execute(_LOCK_SCHEMA, schema)
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
    """Record in the table `migration` that a script has finished; `place` puts the schema's name into a statement."""
    await connection.execute(place(_FINISHED), script.number, script.name)


def sql_text(state: SchemaState, schema: str) -> str:
    """Return the SQL that `migrate` would run now, for an owner to run by hand; '' if there is nothing to do.

    Raises: `SchemaMismatch` if a newer Mainspring made the schema.
    """
    place = schema_qualifier(schema)
    parts = [] if state.exists else [place(_TABLE).strip()]
    for script in find_pending(state):
        done = (
            f"INSERT INTO §migration (number, name, finished_at) VALUES ({script.number}, '{script.name}', now())\n"  # noqa: S608
            "ON CONFLICT (number) DO UPDATE SET finished_at = now();"
        )
        body = f"{script.sql.strip()}\n\n{done}"
        body = body if script.runs_outside_transaction else f"BEGIN;\n\n{body}\n\nCOMMIT;"
        parts.append(f"-- step {script.number}: {script.name}\n{place(body)}")
    return "\n\n".join(parts)


def schema_qualifier(schema: str) -> Callable[[str], str]:
    """Return a function that puts the schema's quoted name into a statement, in place of each § and each {schema}.

    § stands before a table's name, so a dot follows the schema's name there.
    """
    name = f'"{schema}"'
    return lambda sql: sql.replace("§", f"{name}.").replace("{schema}", name)
