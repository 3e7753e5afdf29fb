"""PostgreSQL for the test suite: one server per test run, one database per pytest process, one schema per test."""

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
    """Create a database for this process and return its URL; later calls return that URL.

    Without a server, skip the calling test with the reason, or fail it if the variable CI is "true".
    """
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

    with ThreadPoolExecutor(1) as thread:  # the caller's thread may run an event loop
        thread.submit(asyncio.run, create()).result()
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


def fresh_url(base: str | None = None, **options: object) -> str:
    """Return the URL of a schema that no other test uses; it does not exist yet.

    `base`: the URL of the database; None: `database_url()`. `options` are added to the URL's query.
    """
    words = {"schema": f"t{next(_schemas)}", **options}
    base = base or database_url()
    query = "&".join(f"{name}={value}" for name, value in words.items())
    return f"{base}{'&' if '?' in base else '?'}{query}"


@cache
def pooled_url() -> str:
    """Return the URL of PgBouncer in transaction mode before `database_url()`; skip the test without PgBouncer."""
    url = database_url()
    try:
        return pgbouncer_url(url)
    except Unavailable as error:
        pytest.skip(str(error))


def fresh_store(**options: object) -> PostgresStore:
    """Return a store on a schema of its own, not yet open; `options` are those of `fresh_url`."""
    return PostgresStore(fresh_url(None, **options))
