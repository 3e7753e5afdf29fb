"""What the scenarios of Mainspring share."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

from bench.contenders.common import SETTINGS, committed, durable, path_in
from mainspring import Mainspring
from mainspring.app.internals import host_of


def url_of(folder: str, store: str = "sqlite") -> str:
    """`store` is a kind of embedded store, or the URL of a server's."""
    if "://" in store:
        return store
    return "memory://" if store == "memory" else "sqlite:///" + path_in(folder, "mainspring.db")


async def durability_in(ms: Mainspring) -> str:
    """Asked on the store's own connection: no door says this, and it must be read, not believed."""

    async def ask(runtime: Any) -> str:
        db = runtime.store._db
        return durable(db.value("PRAGMA journal_mode"), db.value("PRAGMA synchronous"))

    async def ask_server(runtime: Any) -> str:
        async with runtime.store._db.session() as session:
            return committed(*await session.row(SETTINGS))

    if ms.url.startswith("memory"):
        return "none (memory)"
    if ms.url.startswith(("redis", "valkey")):
        return await _durability_of_server(ms.url)
    return await host_of(ms).call(ask_server if ms.url.startswith("postgresql") else ask)


async def _durability_of_server(url: str) -> str:
    """A Redis has one setting for all its connections."""
    from bench.contenders.redis.peer import Looks

    look = await Looks.connect(url.partition("?")[0])
    try:
        return await look.durability()
    finally:
        await look.close()


async def ended_in_file(folder: str, task: str) -> None:
    """No run of the task is open any more, asked on a connection of our own."""
    reader = open_reader(folder)
    still = "SELECT EXISTS (SELECT 1 FROM run WHERE ended_at IS NULL AND task = ?)"
    await until(lambda: not reader.execute(still, (task,)).fetchone()[0], 60)
    reader.close()


def open_reader(folder: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path_in(folder, 'mainspring.db')}?mode=ro", uri=True)


async def until(is_so: Callable[[], bool], timeout: float) -> None:
    """Look every millisecond."""
    async with asyncio.timeout(timeout):
        while not is_so():  # noqa: ASYNC110 - facts of other threads and files, which signal nothing
            await asyncio.sleep(0.001)
