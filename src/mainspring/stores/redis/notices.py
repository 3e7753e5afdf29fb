"""Publish and subscribe: hints that save latency. Every loop polls as well, so one that is lost costs nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid

from mainspring.model.errors import StoreError
from mainspring.stores.hints import Hints
from mainspring.stores.redis.database import Database
from mainspring.stores.redis.errors import DRIVER, Broken, translate

log = logging.getLogger("mainspring.stores.redis")

#: At most one notification in so many seconds; the first after a pause goes at once.
_GAP = 0.025
#: So many seconds closing waits for what is being told.
_LAST_WORD = 1.0
#: Seconds between two tries to listen again.
_PATIENCE = 2.0
#: After so many seconds of silence the connection is asked whether it is still one.
_SILENCE = 10.0


class Notices:
    """One connection that listens, in a task of its own; what is told goes through the pool, after the commit."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._hints = Hints()
        self.channel = f"{db.marker}hints"
        #: What we say, so that we do not hear ourselves.
        self.me = uuid.uuid4().hex
        self._heard = False
        self._listening: asyncio.Task[None] | None = None
        self._there = asyncio.Event()
        self._closing = asyncio.Event()
        self._before = self._deaf = False
        self._telling: asyncio.Task[None] | None = None
        self._again = False

    async def wait(self, timeout: float) -> bool:
        """True when another store object said something since the last call, or says it within `timeout`."""
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._there.wait()
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
        if self._telling is not None:  # somebody who only enqueues and goes has told it all the same
            self._closing.set()
            await asyncio.wait({self._telling}, timeout=_LAST_WORD)
        for task in (self._telling, self._listening):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._telling = self._listening = None
        self._there, self._closing, self._before = asyncio.Event(), asyncio.Event(), False
        self._hints.notify()

    async def _tell(self) -> None:
        try:
            while True:
                self._again = False
                with contextlib.suppress(StoreError, Broken):
                    await self._db.read(("PUBLISH", self.channel, self.me))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GAP):
                        await self._closing.wait()
                if not self._again:
                    return
        finally:
            self._telling = None

    async def _listen(self) -> None:
        """Hear for ever; after a break listen again, and say that something may have been missed."""
        while True:
            try:
                await self._hear()
            except (*DRIVER, StoreError) as error:
                if not self._deaf:  # said once, not at every try
                    log.warning("no hints for now, polling goes on: %s", translate(error, self._db.settings.where))
                self._deaf = True
            self._there.set()
            await asyncio.sleep(_PATIENCE)

    async def _hear(self) -> None:
        async with self._db.listening(self.channel) as connection:
            asked = False
            while True:
                said = await connection.read_response(disable_decoding=True, timeout=_SILENCE)
                if said is None and asked:
                    raise TimeoutError("nothing was heard, not even an answer")
                asked = said is None
                if asked:
                    await connection.send_command("PING", check_health=False)
                elif said[0] == b"subscribe":
                    if self._before:
                        self._call()  # something may have been said while nobody listened
                    self._before, self._deaf = True, False
                    self._there.set()
                elif said[0] == b"message" and said[2] != self.me.encode():
                    self._call()

    def _call(self) -> None:
        self._heard = True
        self._hints.notify()
