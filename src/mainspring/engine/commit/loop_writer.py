"""The loop writer: commits new runs on the caller's own event loop, over that loop's own connection to the server.

It is used in a process that only enqueues, where no worker could claim in the same commit. There the way to the engine
loop and back, between two threads, is half of the cost of an enqueue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable

from mainspring.engine.commit.batcher import Batcher
from mainspring.engine.commit.submitter import ThreadsafeSubmitter
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError
from mainspring.ports.store import Store

log = logging.getLogger("mainspring.engine")

#: Open a connection for an event loop at its change of this number.
CONNECT_AFTER_CHANGES = 20
#: If the connection cannot be opened, try again after this many further changes of the event loop.
RECONNECT_AFTER_CHANGES = 200


class _LoopConnection:
    """The connection of one event loop. Until it is open, changes go through the engine loop."""

    def __init__(self) -> None:
        #: Number of changes so far, and the number of changes at which to open a connection.
        self.changes = 0
        self.opens_at = CONNECT_AFTER_CHANGES
        #: Commits over this connection; None while it is not open.
        self.batcher: Batcher | None = None
        #: The task that opens the connection, while it is under way.
        self.opening: asyncio.Task[None] | None = None
        #: The generator that owns the connection: to close the generator closes the connection.
        self.life: AsyncGenerator[Batcher, None] | None = None
        #: The task that closes the connection, kept here so that it is not garbage-collected.
        self.closing: asyncio.Task[None] | None = None


class LoopWriter:
    """A `Writer` with a connection for each event loop that enqueues often.

    A connection is closed when its event loop ends, or by `close`.
    """

    def __init__(self, open_another: Callable[[], Store], submitter: ThreadsafeSubmitter) -> None:
        """Make a writer without a connection yet. `open_another` makes a further store object for the same server.

        The store object is not yet opened. `submitter` commits through the engine loop.
        """
        self._open_another = open_another
        self._submitter = submitter
        self._connections: dict[asyncio.AbstractEventLoop, _LoopConnection] = {}
        self._pid = os.getpid()

    async def apply(self, change: Change) -> Result:
        """Commit a change, together with others of the caller's event loop, and return its result.

        Until that event loop has a connection, the change goes through the engine loop. For an event loop that enqueues
        often, a connection is opened in the background. Raises: StoreError.
        """
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            connection = self._connections[loop] = _LoopConnection()
        if connection.batcher is not None and self._pid == os.getpid():
            return await connection.batcher.apply_here(change)
        connection.changes += 1
        if connection.changes >= connection.opens_at and connection.opening is None:
            connection.opens_at = connection.changes + RECONNECT_AFTER_CHANGES
            connection.opening = loop.create_task(self._open(loop, connection))
        return await self._submitter.apply(change)

    def apply_blocking(self, change: Change) -> Result:
        """Commit a change through the engine loop and return its result: a thread has no connection of its own here.

        Raises: StoreError.
        """
        return self._submitter.apply_blocking(change)

    async def close(self) -> None:
        """Close every connection on its own event loop. Return when the connection of this event loop is closed.

        The connections of other event loops are closed soon after.
        """
        here = asyncio.get_running_loop()
        connections, self._connections = self._connections, {}
        for loop, connection in connections.items():
            if loop is here:
                await _close(connection)
            elif not loop.is_closed():
                with contextlib.suppress(RuntimeError):  # the event loop was closed just now
                    loop.call_soon_threadsafe(_close_soon, connection)

    async def _open(self, loop: asyncio.AbstractEventLoop, connection: _LoopConnection) -> None:
        """Open the connection of the event loop `loop`. If the store raises an error, log it and open no connection."""
        # An event loop that ends closes its asynchronous generators, so it closes the connection in any case.
        connection.life = self._life(loop)
        try:
            connection.batcher = await anext(connection.life)
        except StoreError as error:
            log.info("writes from callers go through the engine for now (slower): %s", error)
        finally:
            connection.opening = None

    async def _life(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Batcher, None]:
        """Open a store, yield its batcher once, and close the store when this generator is closed.

        Why a generator: an event loop that ends closes the asynchronous generators that it runs.
        """
        store = self._open_another()
        batcher = Batcher(store)
        try:
            await store.open()  # the event loop may end during this: then, too, the store is closed
            yield batcher
        finally:
            self._connections.pop(loop, None)
            try:
                await batcher.flush()
            finally:  # also when the flush is cancelled, because the loop ends
                await store.close()


def _close_soon(connection: _LoopConnection) -> None:
    """Close a connection in a task. Thread: the connection's event loop.

    If that event loop ends first, the end of the loop closes the connection.
    """
    connection.closing = asyncio.get_running_loop().create_task(_close(connection))


async def _close(connection: _LoopConnection) -> None:
    """Close a connection; if it is being opened, cancel that. Thread: the connection's event loop."""
    connection.batcher = None
    if connection.opening is not None:
        connection.opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await connection.opening
    if connection.life is not None:
        await connection.life.aclose()
