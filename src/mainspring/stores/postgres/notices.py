"""LISTEN and NOTIFY: hints that save latency. Every loop polls as well, so one that is lost costs nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from typing import Any

from mainspring.model.errors import StoreError
from mainspring.stores.hints import Hints
from mainspring.stores.postgres.database import Broken, Database, Met
from mainspring.stores.postgres.errors import DRIVER, translate
from mainspring.stores.postgres.settings import PostgresSettings

log = logging.getLogger("mainspring.stores.postgres")

#: At most one notification in so many seconds: inside a commit, or after each of them, they would cost a fifth. The
#: first after a pause goes at once.
_GAP = 0.025
#: A commit of its own, but one that need not wait for the disk: a hint that a crash loses costs nothing.
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"
#: Seconds between two tries to listen again.
_PATIENCE = 5.0


def channel_of(settings: PostgresSettings) -> str:
    """Where the stores of one schema talk to each other."""
    return f"mainspring_{settings.schema}"[:63]


class Notices:
    """One direct connection that listens; notifications go through the pool, after the commit, outside it."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._hints = Hints()
        self._channel = channel_of(db.settings)
        self._me = uuid.uuid4().hex
        self._connection: Any = None
        self._retry_at = 0.0
        self._heard = False
        self._telling: asyncio.Task[None] | None = None
        self._again = False

    async def wait(self, timeout: float) -> bool:
        """True when another store object said something since the last call, or says it within `timeout`."""
        await self._listen()
        if not self._heard:
            await self._hints.wait(timeout)
        heard, self._heard = self._heard, False
        return heard

    def tell(self) -> None:
        """Let the others know that something changed; soon, and not too often."""
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell())
        else:
            self._again = True

    async def close(self) -> None:
        task, self._telling = self._telling, None
        if task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                task.cancel()
                await task
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
        self._hints.notify()

    async def _tell(self) -> None:
        try:
            while True:
                self._again = False
                with contextlib.suppress(StoreError, Broken, Met):
                    async with self._db.reading() as session:
                        await session.value(_NOTIFY, self._channel, self._me)
                await asyncio.sleep(_GAP)
                if not self._again:
                    return
        finally:
            self._telling = None

    async def _listen(self) -> None:
        settings = self._db.settings
        if settings.listen == "no" or not self._db.is_open():
            return
        if self._connection is not None and not self._connection.is_closed():
            return
        now = asyncio.get_running_loop().time()
        if now < self._retry_at:
            return
        self._retry_at = now + _PATIENCE
        try:
            connection = await self._connect()
        except DRIVER as error:
            log.warning("no hints for now, polling goes on: %s", translate(error, settings.where))
            return
        if not self._db.is_open():  # closed meanwhile
            connection.terminate()
            return
        if self._connection is not None:
            self._heard = True  # something may have been said while nobody listened
        self._connection = connection
        connection.add_termination_listener(lambda _: self._hints.notify())

    async def _connect(self) -> Any:
        settings = self._db.settings
        connection = await self._db.connect(None if settings.listen == "yes" else settings.listen)
        try:
            await connection.add_listener(self._channel, self._on_notice)
        except BaseException:  # whoever waits may be gone, and nobody else knows of it
            connection.terminate()
            raise
        return connection

    def _on_notice(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        if payload != self._me:
            self._heard = True
            self._hints.notify()
