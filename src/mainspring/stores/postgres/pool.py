"""The connections a store keeps: few, handed out without a task or a timer, for a verb takes one and gives it back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

#: A connection that nobody used for so many seconds may be gone without a word: firewalls forget.
STALE = 300.0
_CLOSED = "its connections were closed meanwhile"


class Pool:
    """At most `size` connections; who finds none waits in line. Used on one loop."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._idle: list[tuple[Any, float]] = []
        self._out: set[Any] = set()
        self._opening = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._ended = False

    @property
    def size(self) -> int:
        """Connections there are now."""
        return len(self._idle) + len(self._out) + self._opening

    async def acquire(self, timeout: float) -> Any:
        """A connection, the one used last if it can be; TimeoutError when none came free."""
        connection = None if self._line else self._take()  # nobody overtakes who waits
        if connection is not None:
            return connection
        async with asyncio.timeout(timeout):
            while not self._ended:
                connection = self._take()
                if connection is not None:
                    return connection
                if self.size < self._size:
                    return await self._open()
                await self._wait()
        raise ConnectionAbortedError(_CLOSED)

    def release(self, connection: Any) -> None:
        """Give one back; a closed one is forgotten."""
        self._out.discard(connection)
        if self._ended:
            connection.terminate()
        elif not connection.is_closed():
            self._idle.append((connection, asyncio.get_running_loop().time()))
        self._next()

    async def close(self) -> None:
        """Close what is idle, then what comes back; whoever cannot wait for that calls `terminate`."""
        while self._idle or self._out or self._opening:
            while self._idle:
                await self._idle.pop()[0].close()
            if self._out or self._opening:
                await self._wait()
        self.terminate()

    def terminate(self) -> None:
        """Cut every connection, and those that come back or open later; whoever waits for one is told."""
        self._ended = True
        for connection in [*(idle for idle, _ in self._idle), *self._out]:
            connection.terminate()
        self._idle.clear()
        while self._line:
            self._next()

    def _take(self) -> Any:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_closed():
                continue
            if now - since > STALE:
                connection.terminate()
                continue
            self._out.add(connection)
            return connection
        return None

    async def _open(self) -> Any:
        self._opening += 1
        try:
            connection = await self._connect()
        finally:
            self._opening -= 1
            self._next()  # if it failed, the next in line may try; if not, it finds no room and waits again
        if self._ended:
            connection.terminate()
            raise ConnectionAbortedError(_CLOSED)
        self._out.add(connection)
        return connection

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._next()  # it was our turn, and we do not take it
            raise

    def _next(self) -> None:
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
