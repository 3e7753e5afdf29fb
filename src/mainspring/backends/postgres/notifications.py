"""Notifications between the instances on one schema by LISTEN and NOTIFY. Losing one costs latency only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from typing import Any

from mainspring.aio.wakeup import Wakeup
from mainspring.backends.postgres.database import Database
from mainspring.backends.postgres.errors import DRIVER_ERRORS, translate
from mainspring.backends.postgres.settings import PostgresSettings
from mainspring.backends.remote.failures import ConnectionLost, WriteConflict
from mainspring.backends.remote.notifications import NotificationDebounce
from mainspring.model.errors import StoreError

log = logging.getLogger("mainspring.backends.postgres")

#: Parameters: channel, payload. A transaction of its own, whose commit does not wait for the disk: a notification that
#: is lost in a crash costs latency only.
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"
#: Seconds between two tries to LISTEN after one failed.
_LISTEN_RETRY_SECONDS = 5.0


def notification_channel(settings: PostgresSettings) -> str:
    """Return the name of the channel on which all stores of one schema notify each other."""
    return f"mainspring_{settings.schema}"[:63]


class Notifications:
    """Notifies other instances of changes, and waits for their notifications, on the event loop that opened the store.

    One direct connection listens. Notifications are sent through the pool, after a change is committed.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._wakeup = Wakeup()
        self._channel = notification_channel(db.settings)
        #: The payload of our own notifications, by which we ignore them.
        self._sender = uuid.uuid4().hex
        self._connection: Any = None
        self._retry_at = 0.0
        self._received = False
        self._debounce = NotificationDebounce(self._send)

    async def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a notification of another store object; begin to listen if necessary.

        Returns True if a notification arrived since the last call, or may have been missed while the connection was
        lost. Otherwise returns False after the time-out, or earlier if this object is closed or the listening
        connection ends.
        """
        await self._listen()
        if not self._received:
            await self._wakeup.wait(timeout)
        received, self._received = self._received, False
        return received

    def request(self) -> None:
        """Notify the other instances that something changed, at once or within 25 ms.

        Requests within 25 ms share a notification.
        """
        self._debounce.request()

    async def close(self) -> None:
        """Stop listening and sending, and wake the caller of `wait`.

        A notification that was requested and is not sent yet is not sent any more.
        """
        await self._debounce.close(grace_seconds=0)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
        self._wakeup.notify()

    async def _send(self) -> None:
        """Notify the other instances. A failure is ignored, because every instance polls as well."""
        with contextlib.suppress(StoreError, ConnectionLost, WriteConflict):
            async with self._db.read_only() as session:
                await session.value(_NOTIFY, self._channel, self._sender)

    async def _listen(self) -> None:
        """Open the connection that listens; log a failure.

        Do nothing if the connection is open, the store is closed, the URL forbids listening, or less than
        _LISTEN_RETRY_SECONDS have passed since the last try.
        """
        settings = self._db.settings
        if settings.listen == "no" or not self._db.is_open():
            return
        if self._connection is not None and not self._connection.is_closed():
            return
        now = asyncio.get_running_loop().time()
        if now < self._retry_at:
            return
        self._retry_at = now + _LISTEN_RETRY_SECONDS
        try:
            connection = await self._connect()
        except DRIVER_ERRORS as error:
            log.warning("no notifications for now, polling goes on: %s", translate(error, settings.where))
            return
        if not self._db.is_open():  # the store was closed meanwhile
            connection.terminate()
            return
        if self._connection is not None:
            self._received = True  # a notification may have been sent while we did not listen
        self._connection = connection
        connection.add_termination_listener(lambda _: self._wakeup.notify())

    async def _connect(self) -> Any:
        """Return a new direct connection that listens on the channel. Raises: the driver's errors."""
        settings = self._db.settings
        connection = await self._db.connect(None if settings.listen == "yes" else settings.listen)
        try:
            await connection.add_listener(self._channel, self._on_notification)
        except BaseException:  # also a cancellation: no other object refers to this connection
            connection.terminate()
            raise
        return connection

    def _on_notification(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        """Wake the caller of `wait`, unless this object sent the notification itself.

        The driver calls this. `payload`: the sender's name; the other arguments are not used.
        """
        if payload != self._sender:
            self._received = True
            self._wakeup.notify()
