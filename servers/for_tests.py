"""The test suite's PostgreSQL: one server a session, a database for each worker process, a schema for each test."""

from __future__ import annotations

import asyncio
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from urllib.parse import urlsplit, urlunsplit

import pytest

from mainspring.backends.postgres import PostgresStore
from servers.pgbouncer import pgbouncer_url
from servers.postgres import Unavailable, postgres_url

_schemas = itertools.count(1)


@cache
def database_url() -> str:
    """A database of this process; skips with the reason where there is no server, and fails in CI."""
    import asyncpg

    try:
        server = postgres_url(os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"pytest-{os.getpid()}")
    except Unavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    name = f"mainspring_test_{os.getpid()}"

    async def create() -> None:
        connection = await asyncpg.connect(server)
        try:
            await connection.execute(f'DROP DATABASE IF EXISTS "{name}"')
            await connection.execute(f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8'")
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:  # whoever asks may be on a loop
        thread.submit(asyncio.run, create()).result()
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


def fresh_url(base: str | None = None, **options: object) -> str:
    """The URL of a schema nobody has used."""
    words = {"schema": f"t{next(_schemas)}", **options}
    base = base or database_url()
    query = "&".join(f"{name}={value}" for name, value in words.items())
    return f"{base}{'&' if '?' in base else '?'}{query}"


@cache
def pooled_url() -> str:
    """The same database by way of PgBouncer in transaction mode; skips with the reason where there is none."""
    url = database_url()
    try:
        return pgbouncer_url(url)
    except Unavailable as error:
        pytest.skip(str(error))


def fresh_store(**options: object) -> PostgresStore:
    """A store on a schema of its own, not yet open."""
    return PostgresStore(fresh_url(None, **options))
