"""A connection as the driver made it, spoken to without the driver's streams, which take half the time of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
from redis import exceptions
from redis.asyncio import Connection

_pack: Any = hiredis.pack_command  # typed as if it took a tuple of one


class Wire(asyncio.Protocol):
    """One question at a time. The driver has connected and logged in; its transport is taken over."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        # The driver has no public names for these; a change of theirs fails every test at once.
        errors = connection._parser.parse_error
        #: Kept: a writer that nobody holds closes its transport.
        self._writer, connection._writer, connection._reader = connection._writer, None, None
        self._reader = hiredis.Reader(protocolError=exceptions.InvalidResponse, replyError=errors)
        if self._writer is None:
            raise exceptions.ConnectionError("the server closed the connection")
        self._transport: Any = self._writer.transport
        self._answers: list[Any] = []
        self._wanted = 0
        self._asked: asyncio.Future[list[Any]] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.closed = bool(self._transport.is_closing())
        self._transport.set_protocol(self)

    async def ask(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Any]:
        """The answers, of which some may be errors; a wire that breaks or falls silent raises."""
        if self.closed:
            raise exceptions.ConnectionError("the connection is closed")
        self._answers, self._wanted = [], len(commands)
        self._asked = self._loop.create_future()
        self._deadline = self._loop.time() + self._timeout
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout, self._look)
        self._transport.write(b"".join(_pack(tuple(words)) for words in commands))
        try:
            return await self._asked
        finally:
            self._asked = None

    def close(self) -> None:
        """Let it go; whoever waits is told."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail(exceptions.ConnectionError("the connection was closed"))
        self.closed = True
        self._transport.abort()

    def _look(self) -> None:
        """One timer for many calls: it goes off when the first is due, and is set again for the last."""
        self._timer = None
        if self._asked is None:
            return
        left = self._deadline - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._fail(exceptions.TimeoutError(f"no answer within {self._timeout:g} s"))

    def _fail(self, error: Exception) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(error)

    # ── what the transport calls ───────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            answer = self._reader.gets()
            while answer is not False:
                self._answers.append(answer)
                answer = self._reader.gets()
        except exceptions.InvalidResponse as error:
            self._fail(error)
            return
        asked = self._asked
        if asked is not None and len(self._answers) >= self._wanted and not asked.done():
            asked.set_result(self._answers)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail(exceptions.ConnectionError(str(error) if error else "the server closed the connection"))
