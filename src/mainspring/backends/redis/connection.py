"""A connection to the server that bypasses the driver's asyncio streams, which would take half the time of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
from redis import exceptions
from redis.asyncio import Connection

_pack: Any = hiredis.pack_command  # its annotation takes tuples of one item only


class RawConnection(asyncio.Protocol):
    """A connection for one call at a time; a call that is not answered within `timeout` seconds fails.

    The driver connects and logs in. Then this class takes over the transport of the driver's `connection`. Raises: the
    driver's ConnectionError if the server has closed the connection already.
    """

    def __init__(self, connection: Connection, timeout: float) -> None:
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        # The driver has no public names for these attributes. If it renames them, every test fails at once.
        parse_error = connection._parser.parse_error
        #: Referenced here because a stream writer that is garbage-collected closes its transport.
        self._writer, connection._writer, connection._reader = connection._writer, None, None
        self._reader = hiredis.Reader(protocolError=exceptions.InvalidResponse, replyError=parse_error)
        if self._writer is None:
            raise exceptions.ConnectionError("the server closed the connection")
        self._transport: Any = self._writer.transport
        self._answers: list[Any] = []
        self._expected_answers = 0
        self._pending: asyncio.Future[list[Any]] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.closed = bool(self._transport.is_closing())
        self._transport.set_protocol(self)

    async def execute(self, commands: Sequence[Sequence[str | bytes | int]]) -> list[Any]:
        """Send commands in one write and return their answers in order; an error answer is returned, not raised.

        Raises the driver's errors: ConnectionError if the connection breaks, TimeoutError if the answers do not arrive
        in time, InvalidResponse if they break the protocol. After an error or a cancellation the connection must not be
        used again, because answers may still arrive.
        """
        if self.closed:
            raise exceptions.ConnectionError("the connection is closed")
        self._answers, self._expected_answers = [], len(commands)
        self._pending = self._loop.create_future()
        self._deadline = self._loop.time() + self._timeout
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout, self._check_deadline)
        self._transport.write(b"".join(_pack(tuple(words)) for words in commands))
        try:
            return await self._pending
        finally:
            self._pending = None

    def close(self) -> None:
        """Abort the connection at once; a call under way raises ConnectionError."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail(exceptions.ConnectionError("the connection was closed"))
        self.closed = True
        self._transport.abort()

    def _check_deadline(self) -> None:
        """End the call under way with an error if its deadline has passed, else set the timer to this deadline.

        The timer calls this. One timer serves many short calls, which costs less than a timer for each call.
        """
        self._timer = None
        if self._pending is None:
            return
        left = self._deadline - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_deadline)
        else:
            self._fail(exceptions.TimeoutError(f"no answer within {self._timeout:g} s"))

    def _fail(self, error: Exception) -> None:
        """End the call under way, if there is one, with this error."""
        if self._pending is not None and not self._pending.done():
            self._pending.set_exception(error)

    # ── callbacks of the transport ─────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and end the call under way once all its answers have arrived."""
        try:
            self._reader.feed(data)
            answer = self._reader.gets()
            while answer is not False:
                self._answers.append(answer)
                answer = self._reader.gets()
        except exceptions.InvalidResponse as error:
            self._fail(error)
            return
        pending = self._pending
        if pending is not None and len(self._answers) >= self._expected_answers and not pending.done():
            pending.set_result(self._answers)

    def connection_lost(self, error: Exception | None) -> None:
        """Set `closed`, and end the call under way with an error.

        `error`: why the connection was lost; None: the server closed it.
        """
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail(exceptions.ConnectionError(str(error) if error else "the server closed the connection"))
