"""Callers' own connections, of every driver, with the same few words."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from mainspring.backends.postgres.settings import read_url


class Caller:
    """What a test says to a connection; async ones answer with awaitables."""

    def __init__(self, connection: Any, execute: Any, begin: Any, commit: Any, rollback: Any, savepoint: Any) -> None:
        self.connection = connection
        self.execute = execute
        self.begin = begin
        self.commit = commit
        self.rollback = rollback
        #: A context manager; what is raised inside undoes what was done inside.
        self.savepoint = savepoint


def dsn(url: str, driver: str = "") -> str:
    """The driver's own URL of a store's database."""
    return read_url(url).dsn.replace("postgresql://", f"postgresql{driver}://")


def _nothing() -> None: ...


async def _nothing_async() -> None: ...


# ── drivers that block ──────────────────────────────────────────────────────


@contextlib.contextmanager
def psycopg_connection(url: str) -> Iterator[Caller]:
    with psycopg.connect(dsn(url), row_factory=psycopg.rows.dict_row) as c:
        yield Caller(c, c.execute, _nothing, c.commit, c.rollback, c.transaction)


@contextlib.contextmanager
def _engine(url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(dsn(url, "+psycopg"), poolclass=sa.NullPool)
    try:
        yield engine
    finally:
        engine.dispose()


@contextlib.contextmanager
def sqlalchemy_connection(url: str) -> Iterator[Caller]:
    with _engine(url) as engine, engine.connect() as c:
        yield Caller(c, lambda sql: c.execute(sa.text(sql)), _nothing, c.commit, c.rollback, c.begin_nested)


@contextlib.contextmanager
def sqlalchemy_session(url: str) -> Iterator[Caller]:
    with _engine(url) as engine, Session(engine) as s:
        yield Caller(s, lambda sql: s.execute(sa.text(sql)), _nothing, s.commit, s.rollback, s.begin_nested)


@contextlib.contextmanager
def django_connection(url: str) -> Iterator[Caller]:
    from django.apps import apps
    from django.conf import UserSettingsHolder, global_settings, settings
    from django.db import transaction
    from django.db.utils import ConnectionHandler
    from django.utils.connection import ConnectionProxy

    parts = psycopg.conninfo.conninfo_to_dict(dsn(url))
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts["user"],
        "HOST": parts["host"],
        "PORT": parts["port"],
    }
    with pytest.MonkeyPatch.context() as patch:
        before = settings.__dict__["_wrapped"]  # another test configures Django in its own way
        settings._wrapped = UserSettingsHolder(global_settings)
        handler = ConnectionHandler({"default": database})
        patch.setattr(transaction, "connections", handler)
        patch.setattr(apps, "ready", True)
        connection = ConnectionProxy(handler, "default")  # what `from django.db import connection` gives
        atomic: list[Any] = []

        def begin() -> None:
            atomic.append(transaction.atomic())
            atomic[-1].__enter__()

        def commit() -> None:
            atomic.pop().__exit__(None, None, None)

        def rollback() -> None:
            transaction.set_rollback(True)
            commit()

        def execute(sql: str) -> None:
            with connection.cursor() as cursor:
                cursor.execute(sql)

        try:
            yield Caller(connection, execute, begin, commit, rollback, transaction.atomic)
        finally:
            handler.close_all()
            settings._wrapped = before


BLOCKING = [psycopg_connection, sqlalchemy_connection, sqlalchemy_session, django_connection]

# ── drivers that are awaited ────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Caller]:
    c = await asyncpg.connect(dsn(url))
    try:
        yield _asyncpg(c)
    finally:
        await c.close()


@contextlib.asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(dsn(url), min_size=1, max_size=1) as pool, pool.acquire() as c:
        yield _asyncpg(c)


def _asyncpg(c: Any) -> Caller:
    transactions: list[Any] = []

    async def begin() -> None:
        transactions.append(c.transaction())
        await transactions[-1].start()

    return Caller(
        c,
        c.execute,
        begin,
        lambda: transactions.pop().commit(),
        lambda: transactions.pop().rollback(),
        c.transaction,
    )


@contextlib.asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(dsn(url)) as c:
        yield Caller(c, c.execute, _nothing_async, c.commit, c.rollback, c.transaction)


@contextlib.asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(dsn(url, "+asyncpg"), poolclass=sa.NullPool)
    async with engine.connect() as c:
        yield Caller(c, lambda sql: c.execute(sa.text(sql)), _nothing_async, c.commit, c.rollback, c.begin_nested)
    await engine.dispose()


@contextlib.asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(dsn(url, "+psycopg"), poolclass=sa.NullPool)
    async with AsyncSession(engine) as s:
        yield Caller(s, lambda sql: s.execute(sa.text(sql)), _nothing_async, s.commit, s.rollback, s.begin_nested)
    await engine.dispose()


AWAITED = [asyncpg_connection, asyncpg_pool, psycopg_async, sqlalchemy_async_connection, sqlalchemy_async_session]
