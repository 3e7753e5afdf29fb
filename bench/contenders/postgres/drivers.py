"""A connection beside a contender's own: what is committed, as another session sees it, with either driver."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol, Self

from bench.contenders.common import SETTINGS, committed

#: Between two looks, in seconds; the first look is taken when every handler has run.
PAUSE = 0.002
#: The looks go by an index: a table full of dead rows would make them slow, and the contender with them.
LOOK = "SET enable_seqscan = off"


class Look(Protocol):
    """A connection beside a contender's own."""

    @classmethod
    async def connect(cls, url: str) -> Self: ...
    async def any(self, rows: str) -> bool: ...
    async def count(self, rows: str) -> int: ...
    async def close(self) -> None: ...


class _Sql:
    """What can be asked with SQL."""

    async def value(self, sql: str) -> Any:
        raise NotImplementedError

    async def any(self, rows: str) -> bool:
        return bool(await self.value(f"SELECT EXISTS ({rows})"))

    async def count(self, rows: str) -> int:
        return int(await self.value(f"SELECT count(*) FROM ({rows}) x"))


class Asyncpg(_Sql):
    """Looks through asyncpg."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, url: str) -> Self:
        import asyncpg

        connection = await asyncpg.connect(url)
        await connection.execute(LOOK)
        return cls(connection)

    async def value(self, sql: str) -> Any:
        return await self.connection.fetchval(sql)

    async def close(self) -> None:
        await self.connection.close()


class Psycopg(_Sql):
    """Looks through psycopg."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, url: str) -> Self:
        import psycopg

        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        await connection.execute(LOOK)
        return cls(connection)

    async def value(self, sql: str) -> Any:
        cursor = await self.connection.execute(sql)
        row = await cursor.fetchone()
        return None if row is None else row[0]

    async def close(self) -> None:
        await self.connection.close()


async def until_none(look: Look, rows: str, timeout: float = 120) -> None:
    """Until the query `rows` finds none: the last outcome is committed."""
    deadline = time.monotonic() + timeout
    while await look.any(rows):
        if time.monotonic() > deadline:
            raise SystemExit(f"still there after {timeout:g} s: {await look.count(rows)}")
        await asyncio.sleep(PAUSE)


async def durability_by_psycopg(connection: Any) -> str:
    """Of a contender's own psycopg session."""
    cursor = await connection.execute(SETTINGS)
    row = await cursor.fetchone()
    return committed(*(row.values() if isinstance(row, dict) else row))


async def durability_by_asyncpg(connection: Any) -> str:
    """Of a contender's own asyncpg session."""
    return committed(*await connection.fetchrow(SETTINGS))
