"""A small pool of connections to the primary, wherever it is: scripts, reads, opening, patience."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from redis import exceptions
from redis.asyncio import Connection

from mainspring.model.errors import StoreError, StoreUnavailable
from mainspring.model.instant import Ms
from mainspring.ports.clock import Clock, SystemClock
from mainspring.stores.redis import checks
from mainspring.stores.redis.errors import BROKEN, DRIVER, Broken, elsewhere, starting, translate
from mainspring.stores.redis.route import Route, connect
from mainspring.stores.redis.scripts import Script
from mainspring.stores.redis.settings import RedisSettings
from mainspring.stores.redis.wire import Wire

log = logging.getLogger("mainspring.stores.redis")

Word = str | bytes | int
#: Seconds between two tries to reach a server that is not there.
_FIRST_TRY, _LAST_TRY = 0.25, 4.0
#: A transport that is let go closes in the next steps of the loop, one of TLS in several; a loop may end after us.
_CLOSING_STEPS = 5
#: So often one call follows a primary that has moved.
_MOVES = 3


class Database:
    """The pool and what the verbs share. Used on the loop that opened it."""

    def __init__(
        self, settings: RedisSettings, clock: Clock | None, failpoint: Callable[[str], None] | None = None
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.route = Route(settings)
        #: The only key a script names: every key begins with it, so all of them lie in its slot.
        self.marker = f"{{{settings.prefix}}}:"
        #: What is not as it should be on the server, for people.
        self.warnings: tuple[str, ...] = ()
        self.memory = checks.Memory()
        self._failpoint = failpoint
        self._pool: _Pool | None = None
        self._pid = 0

    def now(self, now: Ms | None) -> str:
        """What to tell a script about the time: nothing, unless a test or a test's clock is in charge."""
        if now is None and not isinstance(self.clock, SystemClock):
            now = self.clock.now()
        return "" if now is None else str(now)

    def reach(self, point: str) -> None:
        """Call the test's failpoint, if there is one."""
        if self._failpoint is not None:
            self._failpoint(point)

    # ── calls ──────────────────────────────────────────────────────────────

    async def write(self, script: Script, *words: Word) -> Any:
        """One script that writes: it is done all at once, or, when the server refuses it, not at all."""
        self.reach(f"{script.name}:before_commit")
        answer = await self.call(script, *words)
        self.reach(f"{script.name}:after_commit")
        return answer

    async def call(self, script: Script, *words: Word) -> Any:
        """The answer of a script; `Broken` when it may have run and nobody said so."""
        try:
            return (await self._converse([("EVALSHA", script.sha, 1, self.marker, *words)]))[0]
        except exceptions.NoScriptError:
            try:
                return (await self._converse([("EVAL", script.text, 1, self.marker, *words)]))[0]
            except DRIVER as error:
                raise translate(error, self.settings.where) from error
        except DRIVER as error:
            raise translate(error, self.settings.where) from error

    async def read(self, *commands: Sequence[Word]) -> list[Any]:
        """The answers to plain commands, in one round trip."""
        try:
            return await self._converse(commands)
        except DRIVER as error:
            raise translate(error, self.settings.where) from error

    async def _converse(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """Send and read; where the primary has moved, follow it. What the server refused has not been done."""
        for _ in range(_MOVES):
            try:
                return await self._exchange(commands)
            except DRIVER as error:
                if not elsewhere(error):
                    raise
                self._usable().distrust()
        return await self._exchange(commands)

    async def _exchange(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        pool = self._usable()
        try:
            wire = await pool.acquire()
        except DRIVER as error:
            raise translate(error, self.settings.where) from error
        kept = False
        try:
            answers = await wire.ask(commands)
            kept = True
        except BROKEN as error:
            pool.distrust()
            raise Broken(translate(error, self.settings.where)) from error
        finally:
            pool.release(wire, kept=kept)
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                raise answer
        return answers

    def _usable(self) -> _Pool:
        if self._pool is None:
            raise StoreError(f"{self.settings.where} is not open. Call open() first")
        if self._pid != os.getpid():
            raise StoreError(
                f"{self.settings.where} was opened by process {self._pid}, this is its fork {os.getpid()}. "
                "Open a new store here"
            )
        return self._pool

    # ── open, close ────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Reach the server and check what it is."""
        if self._pool is not None and self._pid == os.getpid():
            return
        self._pool, self._pid = _Pool(self.route, self.settings.pool, self.settings.timeout / 1000), os.getpid()
        try:
            info = await self._patiently(self._greet)
            self.warnings = await checks.look(self, info)
        except BaseException:
            await self.close()
            raise
        for warning in self.warnings:
            log.warning("%s: %s", self.settings.where, warning)

    async def close(self) -> None:
        """Let the connections go."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close()
            for _ in range(_CLOSING_STEPS):
                await asyncio.sleep(0)

    async def _greet(self) -> dict[str, str]:
        """What the server says about itself, if it can be used."""
        info = checks.parsed((await self.read(("INFO",)))[0])
        refusal = checks.refuse(info, self.settings.mode, self.settings.where)
        if refusal is not None:
            self._usable().distrust()
            raise refusal
        return info

    async def _patiently(self, ask: Callable[[], Any]) -> Any:
        """Wait for a server that is not there yet, and say so; a server that says no is believed at once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.wait / 1000
        pause = _FIRST_TRY
        while True:
            try:
                return await ask()
            except (StoreError, Broken) as error:
                why = error.why if isinstance(error, Broken) else error
                left = deadline - loop.time()
                if not starting(why, self.settings.mode):
                    raise why from error
                if left <= 0:
                    raise StoreUnavailable(
                        f"{why}; gave up after {self.settings.wait / 1000:g} s. Start the server or check the URL "
                        "(?wait=2m waits longer)"
                    ) from error
            pause = min(pause, max(left, 0.05))
            log.warning("%s; next try in %.1f s, giving up in %.0f s", why, pause, left)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_TRY)

    @contextlib.asynccontextmanager
    async def listening(self, channel: str) -> AsyncIterator[Connection]:
        """A connection of its own that hears what is published."""
        connection = self.route.connection(await self.route.primary())
        try:
            await connect(connection)
            writer = connection._writer  # the driver has no public name for it
            try:
                await connection.send_command("SUBSCRIBE", channel)
                yield connection
            finally:
                if writer is not None:  # the driver forgets it when a read is given up, and TLS would take its time
                    writer.transport.abort()
        finally:
            await connection.disconnect()


class _Pool:
    """At most so many connections to the primary; who comes too late waits. The last one used is the next."""

    def __init__(self, route: Route, size: int, timeout: float) -> None:
        self._route = route
        self._timeout = timeout
        self._room = asyncio.Semaphore(size)
        self._idle: list[Wire] = []
        #: Counts the primaries: a connection to an earlier one is not used again.
        self._term = 0
        self._terms: dict[Wire, int] = {}
        self._address: tuple[str, int] | None = None

    async def acquire(self) -> Wire:
        await self._room.acquire()
        try:
            while self._idle:
                wire = self._idle.pop()
                if not wire.closed:
                    return wire
                self._drop(wire)
            if self._address is None:
                self._address = await self._route.primary()
            term = self._term
            try:
                wire = await self._connected(self._address)
            except BaseException:
                self._address = None  # it may be another by now
                raise
            self._terms[wire] = term
            return wire
        except BaseException:
            self._room.release()
            raise

    async def _connected(self, address: tuple[str, int]) -> Wire:
        connection = self._route.connection(address)
        try:
            await connect(connection)
            return Wire(connection, self._timeout)
        except BaseException:
            await connection.disconnect()
            raise

    def release(self, wire: Wire, *, kept: bool) -> None:
        if kept and self._terms.get(wire) == self._term:
            self._idle.append(wire)
        else:
            self._drop(wire)
        self._room.release()

    def distrust(self) -> None:
        """One connection broke: the others most likely did, too, and the primary may be another."""
        self._term += 1
        self._address = None
        idle, self._idle = self._idle, []
        for wire in idle:
            self._drop(wire)

    def close(self) -> None:
        self.distrust()

    def _drop(self, wire: Wire) -> None:
        self._terms.pop(wire, None)
        wire.close()
