"""The wait for a server that is not up yet when a store is opened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.instant import Ms

T = TypeVar("T")
#: Seconds between two tries: the first pause, and the bound up to which each later pause doubles.
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.25, 4.0


class ServerStarting(Exception):
    """A try to connect failed in a way that is usual while a server is starting. `store_error` is that failure."""

    def __init__(self, store_error: StoreError) -> None:
        super().__init__(str(store_error))
        self.store_error = store_error


async def wait_for_server(connect: Callable[[], Awaitable[T]], limit: Ms, log: logging.Logger) -> T:
    """Await `connect()`, again and again while it raises `ServerStarting`; return its answer.

    Each failed try is logged in `log`. Any other exception is raised at once: a server that refuses a user will refuse
    the next try, too.

    Raises: `StoreUnavailable` when a try fails `limit` milliseconds or more after the first began.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit / 1000
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await connect()
        except ServerStarting as starting:
            failure = starting.store_error
            left = deadline - loop.time()
            if left <= 0:
                raise StoreUnavailable(
                    f"{failure}; gave up after {limit / 1000:g} s. Start the server or check the URL "
                    "(?wait=2m waits longer)"
                ) from starting.__cause__
        pause = min(pause, max(left, 0.05))
        log.warning("%s; next try in %.1f s, giving up in %.0f s", failure, pause, left)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)
