"""Connections that callers bring, to insert runs in their own transactions: an adapter for each driver.

An adapter runs a statement with one text parameter. A driver is imported only when a connection of it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Literal, TypeVar

from msgspec import Struct

from mainspring.backends.postgres.transactional import Statement, StoreIdentity, schema_not_found
from mainspring.model.errors import InvalidInput, StoreDenied, StoreError

T = TypeVar("T")
#: Takes a statement and its parameter; returns the one text that the statement returns, or an awaitable of this text.
Execute = Callable[[str, str], Any]

_ACCEPTED = (
    "Give an asyncpg connection, a psycopg 3 connection (sync or async), an SQLAlchemy Connection, Session, "
    "AsyncConnection or AsyncSession on PostgreSQL, or Django's connection"
)
#: SQLSTATEs of errors about a table, column or schema that does not exist or has another form.
_MISSING = {"42P01", "42703", "3F000", "42P10", "428C9"}
#: SQLSTATE of a missing right.
_DENIED = "42501"


class CallerConnection(Struct, frozen=True):
    """A caller's connection in a form that `run_steps` and `run_steps_async` can use, whatever its driver."""

    execute: Execute
    #: True if `execute` returns an awaitable.
    is_async: bool
    #: How the driver writes the parameter in a statement.
    placeholder: Literal["$1", "%s", ":document"]


def adapt(connection: Any) -> CallerConnection:
    """Return the adapter for a caller's connection; its driver is found by the names of its classes and modules.

    Raises: `InvalidInput` if the driver is not known, the connection is seen to be closed, or it does not lead to
    PostgreSQL.
    """
    for cls in type(connection).__mro__:
        make = _ADAPTERS.get((cls.__module__.partition(".")[0], cls.__name__))
        if make is not None:
            return make(connection)
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise InvalidInput("connection", f"{name} is not a connection that can be joined", _ACCEPTED)


def run_steps(
    steps: Generator[Statement, str, T], caller: CallerConnection, store: StoreIdentity, qualify: Callable[[str], str]
) -> T:
    """Run the statements of a generator on a caller's blocking connection; return the generator's result.

    Each statement that `steps` yields is sent to the server, and its answer is sent into `steps`. `qualify` puts the
    schema's name into a statement; `store` is for error texts.

    Raises: `SchemaMismatch` for a missing table, `StoreDenied` for a missing right, and any other error of the driver
    unchanged.
    """
    try:
        sql, document = next(steps)
        while True:
            try:
                answer = caller.execute(qualify(sql).replace("{document}", caller.placeholder), document)
            except Exception as error:
                translated = _translate(error, store)
                if translated is None:
                    raise
                raise translated from error
            sql, document = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


async def run_steps_async(
    steps: Generator[Statement, str, T], caller: CallerConnection, store: StoreIdentity, qualify: Callable[[str], str]
) -> T:
    """Run the statements of a generator on a caller's connection with an async driver; return the generator's result.

    Each statement that `steps` yields is sent to the server, and its answer is sent into `steps`. `qualify` puts the
    schema's name into a statement; `store` is for error texts.

    Raises: `SchemaMismatch` for a missing table, `StoreDenied` for a missing right, and any other error of the driver
    unchanged.
    """
    try:
        sql, document = next(steps)
        while True:
            try:
                answer = await caller.execute(qualify(sql).replace("{document}", caller.placeholder), document)
            except Exception as error:
                translated = _translate(error, store)
                if translated is None:
                    raise
                raise translated from error
            sql, document = steps.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


# ── drivers ─────────────────────────────────────────────────────────────────


def _asyncpg(connection: Any) -> CallerConnection:
    try:
        closed = connection.is_closed()
    except Exception:  # a connection that was released to its pool answers no call
        closed = True
    _refuse_closed(closed)
    return CallerConnection(connection.fetchval, is_async=True, placeholder="$1")


def _psycopg(connection: Any) -> CallerConnection:
    from psycopg.rows import tuple_row  # the caller's own rows may be of any kind

    _refuse_closed(connection.closed)

    def execute(sql: str, document: str) -> Any:
        with connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(sql, [document]).fetchone()[0]

    return CallerConnection(execute, is_async=False, placeholder="%s")


def _psycopg_async(connection: Any) -> CallerConnection:
    from psycopg.rows import tuple_row

    _refuse_closed(connection.closed)

    async def execute(sql: str, document: str) -> Any:
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(sql, [document])
            return (await cursor.fetchone())[0]

    return CallerConnection(execute, is_async=True, placeholder="%s")


def _sqlalchemy(connection: Any) -> CallerConnection:
    from sqlalchemy import text

    _check_dialect(connection)

    def execute(sql: str, document: str) -> Any:
        return connection.execute(text(sql), {"document": document}).scalar_one()

    return CallerConnection(execute, is_async=False, placeholder=":document")


def _sqlalchemy_async(connection: Any) -> CallerConnection:
    from sqlalchemy import text

    _check_dialect(connection)

    async def execute(sql: str, document: str) -> Any:
        return (await connection.execute(text(sql), {"document": document})).scalar_one()

    return CallerConnection(execute, is_async=True, placeholder=":document")


def _check_dialect(connection: Any) -> None:
    """Raise `InvalidInput` if an SQLAlchemy connection or session is closed, or does not lead to PostgreSQL."""
    _refuse_closed(getattr(connection, "closed", False))
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    _check_server(bind.dialect.name)


def _django(connection: Any) -> CallerConnection:
    _check_server(connection.vendor)

    def execute(sql: str, document: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(sql, [document])
            return cursor.fetchone()[0]

    return CallerConnection(execute, is_async=False, placeholder="%s")


#: By top module and name of a class of connections: the function that makes the adapter, or raises `InvalidInput`.
_ADAPTERS: dict[tuple[str, str], Callable[[Any], CallerConnection]] = {
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


# ── errors ──────────────────────────────────────────────────────────────────


def _refuse_closed(closed: object) -> None:
    if closed:
        raise InvalidInput(
            "connection", "it is closed", "Give an open one, inside the transaction that the new runs should join"
        )


def _check_server(name: str) -> None:
    if name != "postgresql":
        raise InvalidInput("connection", f"it leads to {name}, and the store is PostgreSQL", _ACCEPTED)


def _translate(error: Exception, store: StoreIdentity) -> StoreError | None:
    """Return a StoreError for a driver's error about a missing table or right; None for any other error.

    `store`: the store to which the connection should lead, for the error text.
    """
    state = _sqlstate(error)
    if state in _MISSING:
        return schema_not_found(store, " ".join(str(error).split("\n")[0].split()))
    if state == _DENIED:
        return StoreDenied(
            f"connection: its user lacks a right ({' '.join(str(error).split())}). It needs USAGE on schema "
            f"{store.schema!r}, SELECT, INSERT on its run, event and body tables, and SELECT on migration"
        )
    return None


def _sqlstate(error: BaseException | None) -> str | None:
    """Return the SQLSTATE that the server gave for an error, or for an error that it wraps; None if there is none."""
    while error is not None:
        for name in ("sqlstate", "pgcode"):
            state = getattr(error, name, None)
            if isinstance(state, str):
                return state
        error = getattr(error, "orig", None) or error.__cause__
    return None
