"""The database: a pool of connections to the primary, and calls of scripts and commands on these connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from redis import exceptions
from redis.asyncio import Connection

from mainspring.backends.redis import server_checks as checks
from mainspring.backends.redis.connection import RawConnection
from mainspring.backends.redis.discovery import Discovery, connect
from mainspring.backends.redis.errors import (
    CONNECTION_ERRORS,
    DRIVER_ERRORS,
    has_primary_moved,
    may_be_starting,
    translate,
)
from mainspring.backends.redis.scripts import Script
from mainspring.backends.redis.settings import RedisSettings
from mainspring.backends.remote.failures import ConnectionLost
from mainspring.backends.remote.server_wait import ServerStarting, wait_for_server
from mainspring.model.errors import StoreError
from mainspring.model.instant import Ms
from mainspring.ports.clock import Clock, SystemClock

log = logging.getLogger("mainspring.backends.redis")

#: A word of a command, or an argument of a script.
Argument = str | bytes | int
#: How many turns of the event loop `close` waits. An aborted transport closes in the next turn, a transport with TLS in
#: several turns, and the loop may stop right after `close`.
_CLOSING_LOOP_TURNS = 5
#: How many times one call is sent again because the primary has moved.
_MAX_REDIRECTS = 3


class Database:
    """Connection pool, server checks and script calls, which the methods of one store share.

    `clock` and `failpoint` are for tests, and None outside tests: a clock in place of the server's, and a function that
    `reach` calls. Only the event loop that opened it may use it.
    """

    def __init__(
        self, settings: RedisSettings, clock: Clock | None, failpoint: Callable[[str], None] | None = None
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.discovery = Discovery(settings)
        #: Every key begins with this hash tag, so all keys lie in one hash slot. Scripts get no other key as KEYS.
        self.key_prefix = f"{{{settings.prefix}}}:"
        #: A sentence, to be shown to people, for each setting of the server that should be changed.
        self.warnings: tuple[str, ...] = ()
        self.memory = checks.MemoryGuard()
        self._failpoint = failpoint
        self._pool: _Pool | None = None
        self._pid = 0

    def now(self, now: Ms | None) -> str:
        """Return the time argument of a script: '', which stands for the server's own time, except in tests.

        In a test it is `now` if this is not None, else the time of the test's clock if the store was created with one.
        """
        if now is None and not isinstance(self.clock, SystemClock):
            now = self.clock.now()
        return "" if now is None else str(now)

    def reach(self, point: str) -> None:
        """Call the `failpoint` of a test, if there is one, with `point`, the name of the place reached in the code."""
        if self._failpoint is not None:
            self._failpoint(point)

    # ── calls ──────────────────────────────────────────────────────────────

    async def run_write(self, script: Script, *words: Argument) -> Any:
        """Run a script that writes, and return its answer; a script that the server refuses has written nothing.

        `words`: the script's arguments. `reach` gets the points `<script>:before_commit` and `<script>:after_commit`.
        Raises: ConnectionLost if the connection broke: the script may or may not have run. StoreError for any other
        failure.
        """
        self.reach(f"{script.name}:before_commit")
        answer = await self.run_script(script, *words)
        self.reach(f"{script.name}:after_commit")
        return answer

    async def run_script(self, script: Script, *words: Argument) -> Any:
        """Run a script by its hash and return its answer; the text is sent only to a server that does not have it.

        `words`: the script's arguments. Raises: ConnectionLost if the connection broke: the script may or may not have
        run. StoreError for any other failure.
        """
        try:
            return (await self._send_to_primary([("EVALSHA", script.sha, 1, self.key_prefix, *words)]))[0]
        except exceptions.NoScriptError:
            try:
                return (await self._send_to_primary([("EVAL", script.text, 1, self.key_prefix, *words)]))[0]
            except DRIVER_ERRORS as error:
                raise translate(error, self.settings.where) from error
        except DRIVER_ERRORS as error:
            raise translate(error, self.settings.where) from error

    async def run_commands(self, *commands: Sequence[Argument]) -> list[Any]:
        """Send plain commands in one round trip and return their answers.

        Raises: ConnectionLost if the connection broke: the commands may or may not have run. StoreError for any other
        failure.
        """
        try:
            return await self._send_to_primary(commands)
        except DRIVER_ERRORS as error:
            raise translate(error, self.settings.where) from error

    async def _send_to_primary(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands and return their answers; if the primary has moved, find it and send the commands again.

        Why this is safe: a server that answers "moved" or "read-only" has executed nothing. If the primary moves more
        than `_MAX_REDIRECTS` times, the error answer is raised. Raises: StoreError; ConnectionLost; the driver's errors
        for error answers.
        """
        for _ in range(_MAX_REDIRECTS):
            try:
                return await self._send(commands)
            except DRIVER_ERRORS as error:
                if not has_primary_moved(error):
                    raise
                self._require_pool().invalidate()
        return await self._send(commands)

    async def _send(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands on a connection of the pool and return their answers; raise the first error answer.

        Raises: StoreError if no connection can be made; ConnectionLost if the connection broke, after which all
        connections of the pool count as broken.
        """
        pool = self._require_pool()
        try:
            connection = await pool.acquire()
        except DRIVER_ERRORS as error:
            raise translate(error, self.settings.where) from error
        reusable = False
        try:
            answers = await connection.execute(commands)
            reusable = True
        except CONNECTION_ERRORS as error:
            pool.invalidate()
            raise ConnectionLost(translate(error, self.settings.where)) from error
        finally:
            pool.release(connection, reusable=reusable)
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                raise answer
        return answers

    def _require_pool(self) -> _Pool:
        """Return the pool. Raises: StoreError if the store is not open, or was opened before this process forked."""
        if self._pool is None:
            raise StoreError(f"{self.settings.where} is not open. Call open() first")
        if self._pid != os.getpid():
            raise StoreError(
                f"{self.settings.where}: the store was opened by process {self._pid}, before this process was forked. "
                "Make and open a new store in the child"
            )
        return self._pool

    # ── open, close ────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Wait until the server answers, check its version, role and settings, and log what should be changed in them.

        Do nothing if this process has the database open already. Raises: StoreError if the server cannot be used, or
        does not answer in time.
        """
        if self._pool is not None and self._pid == os.getpid():
            return
        self._pool, self._pid = _Pool(self.discovery, self.settings.pool, self.settings.timeout / 1000), os.getpid()
        try:
            info = await wait_for_server(self._try_server, self.settings.wait, log)
            self.warnings = await checks.find_warnings(self, info)
        except BaseException:
            await self.close()
            raise
        for warning in self.warnings:
            log.warning("%s: %s", self.settings.where, warning)

    async def close(self) -> None:
        """Close all connections. A process that was forked after `open` leaves them to its parent."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close()
            for _ in range(_CLOSING_LOOP_TURNS):
                await asyncio.sleep(0)

    async def _check_server(self) -> dict[str, str]:
        """Return the server's answer to INFO as field → value.

        Raises: ConnectionLost if the connection broke; StoreError if this server cannot be used. After such a refusal,
        the pool closes its connections and searches for the primary again.
        """
        info = checks.parse_info((await self.run_commands(("INFO",)))[0])
        refusal = checks.find_refusal(info, self.settings.mode, self.settings.where)
        if refusal is not None:
            self._require_pool().invalidate()
            raise refusal
        return info

    async def _try_server(self) -> dict[str, str]:
        """Check the server once and return its answer to INFO as field → value. `open` repeats this while it fails.

        Raises: ServerStarting if the server may be starting, so that a later try may succeed; StoreError for any other
        failure.
        """
        try:
            return await self._check_server()
        except (StoreError, ConnectionLost) as error:
            failure = error.store_error if isinstance(error, ConnectionLost) else error
            raise (ServerStarting(failure) if may_be_starting(failure, self.settings.mode) else failure) from error

    @contextlib.asynccontextmanager
    async def subscribe(self, channel: str) -> AsyncIterator[Connection]:
        """Lend a connection of its own that is subscribed to a channel; close it at the end of the `async with` block.

        Raises: StoreError if no primary is found; the driver's errors.
        """
        connection = self.discovery.create_connection(await self.discovery.find_primary())
        try:
            await connect(connection)
            writer = connection._writer  # the driver has no public name for it
            try:
                await connection.send_command("SUBSCRIBE", channel)
                yield connection
            finally:
                # The driver drops its writer when a read is cancelled, and a TLS socket would stay half open.
                if writer is not None:
                    writer.transport.abort()
        finally:
            await connection.disconnect()


class _Pool:
    """Pool of at most `size` connections to the primary. The connection that was used last is lent first.

    A caller waits while all connections are in use. `timeout`: how long a call may wait for its answers, in seconds.
    """

    def __init__(self, discovery: Discovery, size: int, timeout: float) -> None:
        self._discovery = discovery
        self._timeout = timeout
        self._permits = asyncio.Semaphore(size)
        self._idle: list[RawConnection] = []
        #: Grows with every `invalidate`; a connection of an earlier generation is not used again.
        self._generation = 0
        self._generations: dict[RawConnection, int] = {}
        #: The primary's address; None: not known, so `acquire` finds it.
        self._address: tuple[str, int] | None = None

    async def acquire(self) -> RawConnection:
        """Return an idle or new connection to the primary, for one call. The caller must give it to `release`.

        Raises: StoreError if no primary is found; the driver's errors if the primary cannot be reached.
        """
        await self._permits.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed:
                    return connection
                self._discard(connection)
            if self._address is None:
                self._address = await self._discovery.find_primary()
            generation = self._generation
            try:
                connection = await self._connect(self._address)
            except BaseException:
                self._address = None  # the primary may have moved
                raise
            self._generations[connection] = generation
            return connection
        except BaseException:
            self._permits.release()
            raise

    async def _connect(self, address: tuple[str, int]) -> RawConnection:
        """Return a new connection to the server at an address, logged in. Raises: the driver's errors."""
        connection = self._discovery.create_connection(address)
        try:
            await connect(connection)
            return RawConnection(connection, self._timeout)
        except BaseException:
            await connection.disconnect()
            raise

    def release(self, connection: RawConnection, *, reusable: bool) -> None:
        """Take a connection back for the next caller.

        Close it instead if it is not `reusable`, because its call failed, or if `invalidate` was called meanwhile.
        """
        if reusable and self._generations.get(connection) == self._generation:
            self._idle.append(connection)
        else:
            self._discard(connection)
        self._permits.release()

    def invalidate(self) -> None:
        """Close the idle connections, forget the primary's address, and let no connection in use be lent again.

        Why: after one connection failed, or the primary moved, the others most likely fail, too.
        """
        self._generation += 1
        self._address = None
        idle, self._idle = self._idle, []
        for connection in idle:
            self._discard(connection)

    def close(self) -> None:
        self.invalidate()

    def _discard(self, connection: RawConnection) -> None:
        self._generations.pop(connection, None)
        connection.close()
