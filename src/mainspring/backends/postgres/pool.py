"""The connection pool of a store.

Every call of the store borrows a connection. So lending an idle connection must cost little: it takes no task or timer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

#: After this time an unused connection is not used again: a firewall may have cut it without a sign.
MAX_IDLE_SECONDS = 300.0
_CLOSED = "its connections were closed meanwhile"


class Pool:
    """Lends at most `size` connections at a time, each opened by a call of `connect`. Only one event loop may use it.

    While all connections are in use, callers wait; the caller that has waited longest is next.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._idle: list[tuple[Any, float]] = []
        self._out: set[Any] = set()
        self._opening = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._ended = False

    @property
    def size(self) -> int:
        """The number of connections that are idle, in use or being opened."""
        return len(self._idle) + len(self._out) + self._opening

    async def acquire(self, timeout: float) -> Any:
        """Return the idle connection that was used last, or a new one; the caller must give it to `release`.

        Raises: `TimeoutError` if no connection is free, or a new connection is not open, within `timeout` seconds;
        `ConnectionAbortedError` after `terminate`; the driver's errors if no connection can be opened.
        """
        connection = None if self._waiters else self._take_idle()  # a new caller does not overtake the waiters
        if connection is not None:
            return connection
        async with asyncio.timeout(timeout):
            while not self._ended:
                connection = self._take_idle()
                if connection is not None:
                    return connection
                if self.size < self._size:
                    return await self._open()
                await self._wait()
        raise ConnectionAbortedError(_CLOSED)

    def release(self, connection: Any) -> None:
        """Take a connection back for the next caller; discard it if it is closed. After `terminate`, cut it."""
        self._out.discard(connection)
        if self._ended:
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append((connection, asyncio.get_running_loop().time()))
        self._wake_next()

    async def close(self) -> None:
        """Close the idle connections, wait until each connection in use is released, close it too; then `terminate`."""
        while self._idle or self._out or self._opening:
            while self._idle:
                await self._idle.pop()[0].close()
            if self._out or self._opening:
                await self._wait()
        self.terminate()

    def terminate(self) -> None:
        """Cut all connections, including those that are released or opened later.

        Callers that wait in `acquire` get `ConnectionAbortedError`.
        """
        self._ended = True
        for connection in [*(idle for idle, _ in self._idle), *self._out]:
            connection.terminate()
        self._idle.clear()
        while self._waiters:
            self._wake_next()

    def _take_idle(self) -> Any:
        """Return the idle connection that was used last, or None if there is none.

        Discard idle connections that are closed, or were unused for MAX_IDLE_SECONDS.
        """
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_closed():
                continue
            if now - since > MAX_IDLE_SECONDS:
                connection.terminate()
                continue
            self._out.add(connection)
            return connection
        return None

    async def _open(self) -> Any:
        """Open a connection, count it as in use and return it; after `terminate`, cut it.

        Raises: `ConnectionAbortedError` after `terminate`; the driver's errors.
        """
        self._opening += 1
        try:
            connection = await self._connect()
        finally:
            self._opening -= 1
            self._wake_next()  # after a failure the next waiter may try; otherwise it finds no room and waits again
        if self._ended:
            connection.terminate()
            raise ConnectionAbortedError(_CLOSED)
        self._out.add(connection)
        return connection

    async def _wait(self) -> None:
        """Wait in line until `_wake_next` wakes this caller, which must then check again whether it can go on."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._wake_next()  # we were woken and do not use the turn
            raise

    def _wake_next(self) -> None:
        """Wake the caller that has waited longest, if there is one."""
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return
