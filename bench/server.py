"""The benchmark's own PostgreSQL: one durable server, and a new database for each contender and run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from servers.postgres import Unavailable, postgres_url

__all__ = ["Databases", "Unavailable"]

T = TypeVar("T")
#: Settings on which every run depends; read from the server, and again by each contender in its own session.
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
_SHOWN = (*DURABLE, "server_version", "shared_buffers", "max_wal_size", "autovacuum_naptime")


class Databases:
    """Creates databases on a server that is started at the first use and ends with this process."""

    def __init__(self) -> None:
        self._url = ""
        self._numbers = itertools.count(1)
        self._templates: dict[str, tuple[str, dict[str, Any]]] = {}

    @property
    def url(self) -> str:
        """URL of the server's own database."""
        if not self._url:
            self._url = postgres_url(f"bench-{os.getpid()}", durable=True)
        return self._url

    def about(self) -> dict[str, str]:
        """Return the settings that matter, as reported by the server; exit if the server may lose a commit."""
        said = _wait(self._settings())
        weak = {name: said[name] for name, wanted in DURABLE.items() if said[name] != wanted}
        if weak:
            raise Unavailable(f"this server runs with {weak}; a fair run needs {DURABLE}")
        return said

    @contextlib.contextmanager
    def fresh(self, template: str = "") -> Iterator[str]:
        """Yield the URL of a new database, empty or a copy of a template; drop the database afterwards."""
        name = f"mainspring_bench_{os.getpid()}_{next(self._numbers)}"
        _wait(self._create(name, template))
        try:
            yield self._at(name)
        finally:
            _wait(self._drop(name))

    def template(self, key: str, fill: Callable[[str], dict[str, Any]]) -> tuple[str, dict[str, Any]]:
        """Return the name of a template database and the result of `fill`, which is called once, to fill it."""
        if key not in self._templates:
            name = f"mainspring_bench_{os.getpid()}_{next(self._numbers)}"
            _wait(self._create(name, ""))
            figures = fill(self._at(name))
            _wait(self._settle(self._at(name)))
            self._templates[key] = name, figures
        return self._templates[key]

    def close(self) -> None:
        """Drop the templates: the server may be used for other purposes as well."""
        for name, _ in self._templates.values():
            _wait(self._drop(name))
        self._templates.clear()

    def _at(self, name: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    async def _settings(self) -> dict[str, str]:
        async with _connected(self.url) as connection:
            return {name: str(await connection.fetchval(f"SHOW {name}")) for name in _SHOWN}

    async def _create(self, name: str, template: str) -> None:
        async with _connected(self.url) as connection:
            how = f'TEMPLATE "{template}"' if template else "TEMPLATE template0 ENCODING 'UTF8'"
            if template and connection.get_server_version().major >= 15:
                how += " STRATEGY file_copy"
            await connection.execute(f'CREATE DATABASE "{name}" {how}')
            # No run may pay for flushing the dirty pages of the run before.
            with contextlib.suppress(Exception):
                await connection.execute("CHECKPOINT")

    async def _settle(self, url: str) -> None:
        """Vacuum and analyze every table, as autovacuum would have done after a while."""
        async with _connected(url) as connection:
            await connection.execute("VACUUM ANALYZE")

    async def _drop(self, name: str) -> None:
        async with _connected(self.url) as connection:
            await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


def _wait(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
