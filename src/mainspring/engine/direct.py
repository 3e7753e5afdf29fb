"""New runs straight from the caller's loop to a server, when the engine of this process has nothing to add.

A process that only enqueues has no worker that could claim in the same commit. Then the two hops to the engine's loop
and back are half of what an enqueue costs, and a connection on the caller's own loop saves them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable

from mainspring.engine.batcher import Batcher
from mainspring.engine.crossing import Crossing
from mainspring.model.change import Change, Result
from mainspring.model.errors import StoreError
from mainspring.ports.store import Store

log = logging.getLogger("mainspring.engine")

#: So many new runs from one loop are worth a connection of its own.
OFTEN = 20
#: A server that could not be reached is tried again after so many more.
PATIENCE = 200


class _Door:
    """One loop's way to the store; until it is open, changes cross to the engine's loop as everywhere."""

    def __init__(self) -> None:
        self.asked = 0
        self.opens_at = OFTEN
        self.batcher: Batcher | None = None
        self.opening: asyncio.Task[None] | None = None
        self.life: AsyncGenerator[Batcher, None] | None = None
        self.shutting: asyncio.Task[None] | None = None


class Direct:
    """A door for each loop that enqueues often; closed with its loop, or by `close`."""

    def __init__(self, another: Callable[[], Store], crossing: Crossing) -> None:
        self._another = another
        self._crossing = crossing
        self._doors: dict[asyncio.AbstractEventLoop, _Door] = {}
        self._pid = os.getpid()

    async def apply(self, change: Change) -> Result:
        """Commit a change with its neighbours of the same loop."""
        loop = asyncio.get_running_loop()
        door = self._doors.get(loop)
        if door is None:
            door = self._doors[loop] = _Door()
        if door.batcher is not None and self._pid == os.getpid():
            return await door.batcher.apply_here(change)
        door.asked += 1
        if door.asked >= door.opens_at and door.opening is None:
            door.opens_at = door.asked + PATIENCE
            door.opening = loop.create_task(self._open(loop, door))
        return await self._crossing.apply(change)

    def apply_blocking(self, change: Change) -> Result:
        """The same for a thread without a loop, which has no door."""
        return self._crossing.apply_blocking(change)

    async def close(self) -> None:
        """Close every door, each on its own loop."""
        here = asyncio.get_running_loop()
        doors, self._doors = self._doors, {}
        for loop, door in doors.items():
            if loop is here:
                await _shut(door)
            elif not loop.is_closed():
                with contextlib.suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(_shut_soon, door)

    async def _open(self, loop: asyncio.AbstractEventLoop, door: _Door) -> None:
        # A loop that ends closes the generators that live on it: so the connection goes with it, whoever forgot it.
        door.life = self._life(loop)
        try:
            door.batcher = await anext(door.life)
        except StoreError as error:
            log.info("no connection on the caller's loop: %s", error)
        finally:
            door.opening = None

    async def _life(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Batcher, None]:
        store = self._another()
        batcher = Batcher(store, lambda changes, claimed: None, lambda event: None)
        try:
            await store.open()  # a loop may end meanwhile
            yield batcher
        finally:
            self._doors.pop(loop, None)
            await batcher.flush()
            await store.close()


def _shut_soon(door: _Door) -> None:
    """On its loop; one that ends before it comes to this closes the connection by itself."""
    door.shutting = asyncio.get_running_loop().create_task(_shut(door))


async def _shut(door: _Door) -> None:
    door.batcher = None
    if door.opening is not None:
        door.opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await door.opening
    if door.life is not None:
        await door.life.aclose()
