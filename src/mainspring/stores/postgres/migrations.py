"""The schema, in numbered scripts: made at the first opening, changed only by `mainspring migrate`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

import asyncpg
from msgspec import Struct

from mainspring.model.errors import SchemaMismatch

#: A script that begins with this line cannot run inside a transaction; it must be right when run again.
OUTSIDE = "-- outside a transaction"
#: Seconds that one statement of a migration may take: an index over a long history takes its time.
_LONG = 86_400.0

_TABLE = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE §migration (
    number      integer PRIMARY KEY,
    name        text NOT NULL,
    began_at    timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);
"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('mainspring:' || $1, 0))"
_TABLES = """
SELECT count(*) AS tables, count(*) FILTER (WHERE c.relname = 'migration') AS ours
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p', 'v', 'm')
"""


class Script(Struct, frozen=True):
    """One step of the schema."""

    number: int
    name: str
    sql: str

    @property
    def outside(self) -> bool:
        return self.sql.startswith(OUTSIDE)


class SchemaState(Struct, frozen=True):
    """What the database says of itself."""

    exists: bool
    finished: frozenset[int] = frozenset()
    unfinished: frozenset[int] = frozenset()

    @property
    def newest(self) -> int:
        return max(self.finished | self.unfinished, default=0)


def scripts() -> list[Script]:
    """Every script, in order."""
    folder = resources.files("mainspring.stores.postgres") / "sql"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [Script(int(f.name[:4]), f.name[5:-4], f.read_text(encoding="utf-8")) for f in files]


async def read_state(connection: asyncpg.Connection, schema: str) -> SchemaState:
    """The scripts that ran; a schema with tables that are not ours is refused."""
    name = f'"{schema}"'
    tables, ours = await connection.fetchrow(_TABLES, schema)  # one look at both: another may be creating them now
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
    """What is left to run; raises when the database knows scripts that we do not."""
    known = scripts()
    if state.newest > known[-1].number:
        raise SchemaMismatch(
            f"the database has schema {state.newest}, this Mainspring knows up to {known[-1].number}. "
            "Upgrade Mainspring; the database was left as it is"
        )
    return [script for script in known if script.number not in state.finished]


def refuse(state: SchemaState, url: str) -> SchemaMismatch | None:
    """Why a schema that exists cannot be used, and the command that mends it."""
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
    """Make everything in one transaction, unless another instance was faster."""
    async with connection.transaction():
        await connection.execute(_LOCK, schema)
        if (await read_state(connection, schema)).exists:
            return
        place = placed(schema)
        await connection.execute(place(_TABLE))
        for script in scripts():
            assert not script.outside, "a new database needs no script that runs outside a transaction"
            await connection.execute(place(script.sql))
            await _finish(connection, script, place)


async def migrate(connection: asyncpg.Connection, schema: str) -> list[Script]:
    """Run what is left, each script once however many ask for it; the ones that ran here."""
    ran: list[Script] = []
    if not (await read_state(connection, schema)).exists:
        await create(connection, schema)
        return scripts()
    place = placed(schema)
    for script in pending(await read_state(connection, schema)):
        if script.outside:
            await connection.execute(place(_BEGAN), script.number, script.name)
            for statement in script.sql.split(";\n"):
                if statement.strip():
                    await connection.execute(place(statement), timeout=_LONG)
            await _finish(connection, script, place)
        else:
            async with connection.transaction():
                await connection.execute(_LOCK, schema)
                if script.number in (await read_state(connection, schema)).finished:
                    continue
                await connection.execute(place(script.sql), timeout=_LONG)
                await _finish(connection, script, place)
        ran.append(script)
    return ran


_BEGAN = "INSERT INTO §migration (number, name) VALUES ($1, $2) ON CONFLICT DO NOTHING"
_FINISHED = """
INSERT INTO §migration (number, name, finished_at) VALUES ($1, $2, now())
ON CONFLICT (number) DO UPDATE SET finished_at = now()
"""


async def _finish(connection: asyncpg.Connection, script: Script, place: Callable[[str], str]) -> None:
    await connection.execute(place(_FINISHED), script.number, script.name)


def sql_text(state: SchemaState, schema: str) -> str:
    """The same by hand: what `migrate` would run now."""
    place = placed(schema)
    parts = [] if state.exists else [place(_TABLE).strip()]
    for script in pending(state):
        done = (
            f"INSERT INTO §migration (number, name, finished_at) VALUES ({script.number}, '{script.name}', now())\n"  # noqa: S608
            "ON CONFLICT (number) DO UPDATE SET finished_at = now();"
        )
        body = f"{script.sql.strip()}\n\n{done}"
        body = body if script.outside else f"BEGIN;\n\n{body}\n\nCOMMIT;"
        parts.append(f"-- step {script.number}: {script.name}\n{place(body)}")
    return "\n\n".join(parts)


def placed(schema: str) -> Callable[[str], str]:
    """Puts the schema's name where § stands."""
    name = f'"{schema}"'
    return lambda sql: sql.replace("§", f"{name}.").replace("{schema}", name)
