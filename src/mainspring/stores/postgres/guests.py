"""Callers' connections: which driver one is of, and how that driver runs a statement with one text parameter.

No driver is imported here unless the caller's object is already of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Literal, TypeVar

from msgspec import Struct

from mainspring.model.errors import InvalidInput, StoreDenied, StoreError
from mainspring.stores.postgres.joining import Ask, Home, elsewhere

T = TypeVar("T")
#: A statement and its parameter → the one text it answers with.
Execute = Callable[[str, str], Any]

_ACCEPTED = (
    "Give an asyncpg connection, a psycopg 3 connection (sync or async), an SQLAlchemy Connection, Session, "
    "AsyncConnection or AsyncSession on PostgreSQL, or Django's connection"
)
#: SQLSTATEs of a schema that is not there, or not as it is here.
_MISSING = {"42P01", "42703", "3F000", "42P10", "428C9"}
_DENIED = "42501"


class Guest(Struct, frozen=True):
    """A caller's connection."""

    execute: Execute
    #: True when `execute` answers with an awaitable.
    waits: bool
    placeholder: Literal["$1", "%s", ":document"]


def guest(connection: Any) -> Guest:
    """How to use what the caller gave; told by the names of its classes and their modules."""
    for cls in type(connection).__mro__:
        make = _GUESTS.get((cls.__module__.partition(".")[0], cls.__name__))
        if make is not None:
            return make(connection)
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise InvalidInput("connection", f"{name} is not a connection that can be joined", _ACCEPTED)


def run(steps: Generator[Ask, str, T], one: Guest, home: Home, place: Callable[[str], str]) -> T:
    """Take the steps on a connection that blocks."""
    try:
        sql, document = next(steps)
        while True:
            try:
                answer = one.execute(place(sql).replace("{document}", one.placeholder), document)
            except Exception as error:
                told = _told(error, home)
                if told is None:
                    raise
                raise told from error
            sql, document = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


async def run_async(steps: Generator[Ask, str, T], one: Guest, home: Home, place: Callable[[str], str]) -> T:
    """The same on a connection that is awaited."""
    try:
        sql, document = next(steps)
        while True:
            try:
                answer = await one.execute(place(sql).replace("{document}", one.placeholder), document)
            except Exception as error:
                told = _told(error, home)
                if told is None:
                    raise
                raise told from error
            sql, document = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


# ── drivers ─────────────────────────────────────────────────────────────────


def _asyncpg(connection: Any) -> Guest:
    try:
        closed = connection.is_closed()
    except Exception:  # a connection that went back to its pool answers nothing
        closed = True
    _refuse(closed)
    return Guest(connection.fetchval, waits=True, placeholder="$1")


def _psycopg(connection: Any) -> Guest:
    from psycopg.rows import tuple_row  # the caller's own rows may be of any kind

    _refuse(connection.closed)

    def execute(sql: str, document: str) -> Any:
        with connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(sql, [document]).fetchone()[0]

    return Guest(execute, waits=False, placeholder="%s")


def _psycopg_async(connection: Any) -> Guest:
    from psycopg.rows import tuple_row

    _refuse(connection.closed)

    async def execute(sql: str, document: str) -> Any:
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(sql, [document])
            return (await cursor.fetchone())[0]

    return Guest(execute, waits=True, placeholder="%s")


def _sqlalchemy(connection: Any) -> Guest:
    from sqlalchemy import text

    _check_dialect(connection)

    def execute(sql: str, document: str) -> Any:
        return connection.execute(text(sql), {"document": document}).scalar_one()

    return Guest(execute, waits=False, placeholder=":document")


def _sqlalchemy_async(connection: Any) -> Guest:
    from sqlalchemy import text

    _check_dialect(connection)

    async def execute(sql: str, document: str) -> Any:
        return (await connection.execute(text(sql), {"document": document})).scalar_one()

    return Guest(execute, waits=True, placeholder=":document")


def _check_dialect(connection: Any) -> None:
    _refuse(getattr(connection, "closed", False))
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    _check_server(bind.dialect.name)


def _django(connection: Any) -> Guest:
    _check_server(connection.vendor)

    def execute(sql: str, document: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(sql, [document])
            return cursor.fetchone()[0]

    return Guest(execute, waits=False, placeholder="%s")


_GUESTS: dict[tuple[str, str], Callable[[Any], Guest]] = {
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "AsyncConnection"): _psycopg_async,
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "Session"): _sqlalchemy,
    ("sqlalchemy", "scoped_session"): _sqlalchemy,
    ("sqlalchemy", "AsyncConnection"): _sqlalchemy_async,
    ("sqlalchemy", "AsyncSession"): _sqlalchemy_async,
    ("sqlalchemy", "async_scoped_session"): _sqlalchemy_async,
    ("django", "ConnectionProxy"): _django,
    ("django", "BaseDatabaseWrapper"): _django,
}


# ── what may be wrong with them ─────────────────────────────────────────────


def _refuse(closed: object) -> None:
    if closed:
        raise InvalidInput(
            "connection", "it is closed", "Give an open one, inside the transaction that is to be joined"
        )


def _check_server(name: str) -> None:
    if name != "postgresql":
        raise InvalidInput("connection", f"it leads to {name}, and the store is PostgreSQL", _ACCEPTED)


def _told(error: Exception, home: Home) -> StoreError | None:
    """Our words for a wrong place; everything else is between the caller, its driver and its transaction."""
    state = _sqlstate(error)
    if state in _MISSING:
        return elsewhere(home, " ".join(str(error).split("\n")[0].split()))
    if state == _DENIED:
        return StoreDenied(
            f"connection: its user lacks a right ({' '.join(str(error).split())}). It needs USAGE on schema "
            f"{home.schema!r}, SELECT, INSERT on its run, event and body tables, and SELECT on migration"
        )
    return None


def _sqlstate(error: BaseException | None) -> str | None:
    """The server's code for an error, however deep the driver's wrapping."""
    while error is not None:
        for name in ("sqlstate", "pgcode"):
            state = getattr(error, name, None)
            if isinstance(state, str):
                return state
        error = getattr(error, "orig", None) or error.__cause__
    return None
