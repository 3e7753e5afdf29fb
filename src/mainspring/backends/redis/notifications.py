"""Notifications between the instances on one prefix by PUBLISH and SUBSCRIBE. Losing one costs latency only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid

from mainspring.aio.wakeup import Wakeup
from mainspring.backends.redis.database import Database
from mainspring.backends.redis.errors import DRIVER_ERRORS, translate
from mainspring.backends.remote.failures import ConnectionLost
from mainspring.backends.remote.notifications import NotificationDebounce
from mainspring.model.errors import StoreError

log = logging.getLogger("mainspring.backends.redis")

#: How long `close` waits for requested notifications to be sent: a program may enqueue a run and exit at once.
_CLOSE_GRACE_SECONDS = 1.0
#: Seconds between two tries to subscribe after the connection broke.
_SUBSCRIBE_RETRY_SECONDS = 2.0
#: After this time without a message the connection is checked by a PING.
_PING_AFTER_SECONDS = 10.0


class Notifications:
    """Notifies other instances of changes, and waits for their notifications, on the event loop that opened the store.

    A task subscribes with a connection of its own. Notifications are sent through the pool, after a change is stored.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._wakeup = Wakeup()
        self.channel = f"{db.key_prefix}hints"
        #: The payload of our own notifications, by which we ignore them.
        self.sender = uuid.uuid4().hex
        #: True if a notification arrived since the last `wait` returned.
        self._received = False
        self._subscription: asyncio.Task[None] | None = None
        #: Set once the first try to subscribe has succeeded or failed.
        self._first_try_over = asyncio.Event()
        self._was_subscribed = self._is_failing = False
        self._debounce = NotificationDebounce(self._send)

    async def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a notification of another store object, and return True if one arrived.

        Return True at once if a notification arrived since the last call. Also return True if a notification may have
        been lost while the connection was broken. Return False after the time-out, or when this object is closed. The
        first call subscribes before it waits, which may take `timeout` seconds more.
        """
        if self._subscription is None:
            self._subscription = asyncio.get_running_loop().create_task(self._stay_subscribed())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._first_try_over.wait()
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
        """Stop the subscription and wake the caller of `wait`.

        Before that, wait up to a second until requested notifications are sent.
        """
        await self._debounce.close(_CLOSE_GRACE_SECONDS)
        if self._subscription is not None:
            self._subscription.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._subscription
        self._subscription = None
        self._first_try_over, self._was_subscribed = asyncio.Event(), False
        self._wakeup.notify()

    async def _send(self) -> None:
        """Publish a notification; a failure is ignored, because a notification is only a hint."""
        with contextlib.suppress(StoreError, ConnectionLost):
            await self._db.run_commands(("PUBLISH", self.channel, self.sender))

    async def _stay_subscribed(self) -> None:
        """Keep a subscription until this task is cancelled: after a failure, pause and subscribe again.

        Of consecutive failures only the first is logged.
        """
        while True:
            try:
                await self._receive()
            except (*DRIVER_ERRORS, StoreError) as error:
                if not self._is_failing:
                    failure = translate(error, self._db.settings.where)
                    log.warning("no notifications for now, polling goes on: %s", failure)
                self._is_failing = True
            self._first_try_over.set()
            await asyncio.sleep(_SUBSCRIBE_RETRY_SECONDS)

    async def _receive(self) -> None:
        """Subscribe on one connection and receive notifications until the connection fails or this call is cancelled.

        Raises: StoreError or the driver's errors if the connection fails; TimeoutError if a PING is not answered.
        """
        async with self._db.subscribe(self.channel) as connection:
            is_pinged = False
            while True:
                message = await connection.read_response(disable_decoding=True, timeout=_PING_AFTER_SECONDS)
                if message is None and is_pinged:
                    raise TimeoutError("no message arrived, and no answer to a PING")
                is_pinged = message is None
                if is_pinged:
                    await connection.send_command("PING", check_health=False)
                elif message[0] == b"subscribe":
                    if self._was_subscribed:
                        self._notify_waiter()  # a notification may have been sent while we were not subscribed
                    self._was_subscribed, self._is_failing = True, False
                    self._first_try_over.set()
                elif message[0] == b"message" and message[2] != self.sender.encode():
                    self._notify_waiter()

    def _notify_waiter(self) -> None:
        """Wake the caller of `wait`; if there is none, let the next call of `wait` return True at once."""
        self._received = True
        self._wakeup.notify()
