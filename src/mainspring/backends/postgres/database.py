"""The database of a store: its connection pool, sessions and transactions, and the opening of its schema."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, ClassVar

import asyncpg

from mainspring.backends.postgres import migrations
from mainspring.backends.postgres.claim_low_water import ClaimLowWater
from mainspring.backends.postgres.errors import (
    CONFLICT_ERRORS,
    CONNECTION_ERRORS,
    DRIVER_ERRORS,
    may_be_starting,
    translate,
)
from mainspring.backends.postgres.pool import Pool
from mainspring.backends.postgres.settings import PostgresSettings
from mainspring.backends.remote.failures import ConnectionLost, WriteConflict
from mainspring.backends.remote.server_wait import ServerStarting, wait_for_server
from mainspring.model.errors import StoreDenied, StoreError
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.ports.clock import Clock, SystemClock
from mainspring.ports.store import Claim

log = logging.getLogger("mainspring.backends.postgres")

OLDEST_SERVER_VERSION = 14
#: `Database.claimed` is emptied when it holds more runs than this. No worker holds as many.
MAX_REMEMBERED_CLAIMS = 20_000
#: Object ids below this one belong to built-in types, which are equal on every server.
_FIRST_USER_TYPE_OID = 16_384
#: Limits that the server applies, in milliseconds; the driver's own limit is a little longer, in seconds. An instance
#: that stands still inside a transaction is cut off before the lock time-out of the sessions that wait for its locks.
_STATEMENT_TIMEOUT_MS, _LOCK_TIMEOUT_MS, _IDLE_TRANSACTION_TIMEOUT_MS = 30_000, 5_000, 3_000
_COMMAND_TIMEOUT_SECONDS = 35.0
#: Limit for opening a connection, and for the wait for a free connection of the pool.
_CONNECT_TIMEOUT_SECONDS = 5.0
#: A connection is given up when data that was sent is not acknowledged for this time: its packets are being lost.
_TCP_USER_TIMEOUT_MS = 5_000
#: Settings of every session. Every statement has an index, so sequential scans and hash and merge joins are off: a plan
#: made while the tables were small must not scan them when they are large. No plan depends on the parameters, so the
#: server makes one plan for each statement; by default, it would make a new plan for every claim.
_SESSION_SETTINGS = {
    "statement_timeout": str(_STATEMENT_TIMEOUT_MS),
    "lock_timeout": str(_LOCK_TIMEOUT_MS),
    "idle_in_transaction_session_timeout": str(_IDLE_TRANSACTION_TIMEOUT_MS),
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}


class GateMode(IntEnum):
    """Which kind of statement a claim begins with, judged by the runs that recent claims found."""

    #: Runs without gates.
    UNGATED = 0
    #: Runs with gates that have room.
    OPEN = 1
    #: Runs at gates that are full, or runs that crashed before: only Python code can decide.
    CONTENDED = 2


class Connection(asyncpg.Connection):  # type: ignore[misc]  # the driver is not typed
    """A driver's connection without the reset between two uses, because our sessions leave no state behind.

    What the driver asks the server about built-in types is asked once per process, not once per connection.
    """

    #: The server's descriptions of built-in types, by their ids. All servers answer alike.
    _builtin_types: ClassVar[dict[frozenset[int], Any]] = {}

    def get_reset_query(self) -> str:
        return ""

    async def _introspect_types(self, typeoids: Any, timeout: Any) -> Any:
        """Return the server's or the cached description of types, and the statement that asked for it.

        For a cached description a stand-in takes the place of the statement: the driver reads only its name.
        """
        key = frozenset(typeoids)
        if max(key) >= _FIRST_USER_TYPE_OID:
            return await super()._introspect_types(typeoids, timeout)
        if key not in self._builtin_types:
            types, _ = await super()._introspect_types(typeoids, timeout)
            self._builtin_types[key] = types
        return self._builtin_types[key], SimpleNamespace(name="known")


class Session:
    """Runs statements on one connection, with the schema's name put into each."""

    def __init__(self, connection: Any, qualify: Callable[[str], str]) -> None:
        self.connection = connection
        self._qualify = qualify

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        """Run a statement and return its records."""
        records: list[Any] = await self.connection.fetch(self._qualify(sql), *parameters)
        return records

    async def row(self, sql: str, *parameters: Any) -> Any:
        """Run a statement and return its first record, or None."""
        return await self.connection.fetchrow(self._qualify(sql), *parameters)

    async def value(self, sql: str, *parameters: Any) -> Any:
        """Run a statement and return the first column of its first record, or None."""
        return await self.connection.fetchval(self._qualify(sql), *parameters)


class Database:
    """The connection pool and other state that all verbs of one store share. Thread: the loop that opened it."""

    def __init__(
        self, settings: PostgresSettings, clock: Clock | None, failpoint: Callable[[str], None] | None
    ) -> None:
        """`clock` and `failpoint` are for tests; None: the server's clock decides, and no failpoint is called."""
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._failpoint = failpoint
        self._pool: Pool | None = None
        self._pid = 0
        #: The mode that the last claim needed, with which the next claim begins.
        self.gate_mode = GateMode.UNGATED
        #: By id: the runs that this object claimed, as they were at the claim. Only a success of one of these, under
        #: the same epoch, may take the fast path of `apply`.
        self.claimed: dict[str, Run] = {}
        self.low_water = ClaimLowWater()
        self._qualified: dict[str, str] = {}
        self._qualify = migrations.schema_qualifier(settings.schema)

    def qualify(self, sql: str) -> str:
        """Return the statement with the name of the store's schema in place of each §."""
        found = self._qualified.get(sql)
        if found is None:
            found = self._qualified[sql] = self._qualify(sql)
        return found

    def remember_claims(self, claims: list[Claim]) -> None:
        """Add claimed runs to `claimed`, where they stay until `apply` is given a change under their lease.

        Above MAX_REMEMBERED_CLAIMS all earlier runs are dropped first: runs whose lease was lost pile up. A dropped run
        only loses the fast path for its success.
        """
        if len(self.claimed) > MAX_REMEMBERED_CLAIMS:  # runs whose lease was lost pile up
            self.claimed.clear()
        for claim in claims:
            self.claimed[claim.run.id] = claim.run

    def now(self, now: Ms | None) -> Ms | None:
        """Return the instant to send to the server: `now`, else the time of a test's clock, else None.

        None, the normal case, means that the server's clock decides.
        """
        return now if now is not None or isinstance(self.clock, SystemClock) else self.clock.now()

    def reach(self, point: str) -> None:
        """Call the failpoint of a test, if there is one, with the name of the point that the code has reached."""
        if self._failpoint is not None:
            self._failpoint(point)

    # ── statements ─────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Lend a connection of the pool as a Session, for the time of an `async with` block.

        Driver errors inside the block become `ConnectionLost` if the connection broke, `WriteConflict` if two writers
        collided, each with a `StoreError` inside, else that `StoreError` itself. A failure to get a connection is a
        `StoreError`. A connection that broke, or whose block was cancelled, is cut.
        """
        pool = self._require_pool()
        where = self.settings.where
        try:
            connection = await pool.acquire(timeout=_CONNECT_TIMEOUT_SECONDS)
        except DRIVER_ERRORS as error:
            raise translate(error, where) from error
        try:
            yield Session(connection, self.qualify)
        except DRIVER_ERRORS as error:
            failure = translate(error, where)
            if isinstance(error, CONNECTION_ERRORS):
                connection.terminate()
                raise ConnectionLost(failure) from error
            raise (WriteConflict(failure) if isinstance(error, CONFLICT_ERRORS) else failure) from error
        except asyncio.CancelledError:
            connection.terminate()  # a statement may still be running on it
            raise
        finally:
            pool.release(connection)

    @contextlib.asynccontextmanager
    async def transaction(self, verb: str) -> AsyncIterator[Session]:
        """Lend a session inside a transaction: commit at the end of the block, roll back on any exception.

        The failpoint is called with names that begin with `verb`, such as `apply:before_commit`. Raises: as `session`.
        """
        async with self.session() as session:
            connection = session.connection
            await connection.execute(self._begin)
            try:
                yield session
                self.reach(f"{verb}:before_commit")
                await connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(*DRIVER_ERRORS):
                    if not connection.is_closed():
                        await connection.execute("ROLLBACK")
                raise
        self.reach(f"{verb}:after_commit")

    @contextlib.asynccontextmanager
    async def single_statement(self, verb: str) -> AsyncIterator[Session]:
        """Lend a session for one statement, which commits by itself. Raises: as `session`.

        Behind a pooler, and where a test listens to `reach`, it is a `transaction` instead.
        The argument `verb` begins the names that `reach` gets.
        """
        if self._failpoint is not None or self.settings.pooler:
            async with self.transaction(verb) as session:
                yield session
        else:
            async with self.session() as session:
                yield session

    @contextlib.asynccontextmanager
    async def read_only(self) -> AsyncIterator[Session]:
        """Lend a session for statements that change no row; each has a snapshot of its own. Raises: as `session`.

        Behind a pooler a transaction surrounds them, because the session settings last for one transaction only.
        """
        async with self.session() as session:
            if self.settings.pooler:
                await session.connection.execute(self._begin)
            yield session
            if self.settings.pooler:
                await session.connection.execute("COMMIT")

    @property
    def _begin(self) -> str:
        """SQL that begins a transaction; behind a pooler it also makes the session settings, until the commit."""
        if not self.settings.pooler:
            return "BEGIN"
        return "BEGIN; " + "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in _SESSION_SETTINGS.items())

    def is_open(self) -> bool:
        """Return True between `open` and `close`."""
        return self._pool is not None

    def _require_pool(self) -> Pool:
        """Return the pool. Raises: `StoreError` if the store is not open, or was opened before this process forked."""
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
        """Wait for the server, check it, create the schema or check its version, and create the pool.

        Does nothing if this process has it open. Raises: `StoreError`, of which `SchemaMismatch` if the schema needs a
        migration, is newer than this Mainspring, or holds another program's tables.
        """
        if self._pool is not None and self._pid == os.getpid():
            return
        connection = await self.connect_when_up()
        try:
            await self._check(connection)
            self.reach("open:after_migrate")
        except DRIVER_ERRORS as error:
            raise translate(error, self.settings.where) from error
        finally:
            await _close(connection)
        self._pool = Pool(self.connect, self.settings.pool)
        self._pid = os.getpid()

    async def close(self) -> None:
        """Close all connections of the pool; those in use are cut after 5 seconds. A forked process closes none."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            try:
                with contextlib.suppress(*DRIVER_ERRORS):
                    async with asyncio.timeout(5.0):
                        await pool.close()
            finally:  # also when the call is cancelled
                pool.terminate()

    async def connect(self, address: str | None = None, *, no_time_limit: bool = False) -> Any:
        """Open and return a connection that the caller closes; the pool opens its connections by this, too.

        `address`: host:port to connect to; None: the URL's. With `no_time_limit` the server does not limit statements;
        the driver does, unless a call gives a `timeout`. Raises: the driver's errors, untranslated.
        """
        server: dict[str, Any] = {}
        if address is not None:
            host, _, port = address.rpartition(":")
            server = {"host": host, "port": int(port)}
        connection = await asyncpg.connect(self.settings.dsn, connection_class=Connection, **server, **self._options())
        try:
            await _set_tcp_user_timeout(connection)
            if no_time_limit:
                await connection.execute("SET statement_timeout = 0", timeout=_CONNECT_TIMEOUT_SECONDS)
        except BaseException:  # also a cancellation: no other object refers to this connection
            connection.terminate()
            raise
        return connection

    async def connect_when_up(self, *, no_time_limit: bool = False) -> Any:
        """Open and return a connection that the caller closes; while the server is not up, try again.

        `settings.wait` limits the time for this. Only failures that `may_be_starting` accepts are tried again, so a
        refused password is not. `no_time_limit`: as for `connect`. Raises: `StoreError`.
        """

        async def connect() -> Any:
            try:
                return await self.connect(no_time_limit=no_time_limit)
            except (*DRIVER_ERRORS, ValueError) as error:
                failure = translate(error, self.settings.where)
                raise (ServerStarting(failure) if may_be_starting(error) else failure) from error

        return await wait_for_server(connect, self.settings.wait, log)

    def _options(self) -> dict[str, Any]:
        """Return the driver's options for every connection: time-outs, statement cache and session settings."""
        session = {} if self.settings.pooler else _SESSION_SETTINGS  # a pooler refuses settings at the start
        return {
            "timeout": _CONNECT_TIMEOUT_SECONDS,
            "command_timeout": _COMMAND_TIMEOUT_SECONDS,
            "statement_cache_size": self.settings.statement_cache_size,
            "server_settings": {"application_name": self.settings.application_name, **session},
        }

    async def _check(self, connection: Any) -> None:
        """Check the server and the version of the schema; create the schema if it is missing. Raises: `StoreError`."""
        settings = self.settings
        _check_server(connection, settings)
        state = await migrations.read_state(connection, settings.schema)
        if not state.exists:
            try:
                await migrations.create(connection, settings.schema)
            except asyncpg.InsufficientPrivilegeError as error:
                raise StoreDenied(
                    f"{settings.where}: the user may not create schema {settings.schema!r} ({error}). "
                    f"Let an owner run it: mainspring migrate --sql --store URL | psql, or "
                    "GRANT CREATE ON DATABASE … TO …"
                ) from error
            return
        refusal = migrations.refuse(state, self.shown_url)
        if refusal is not None:
            raise refusal

    @property
    def shown_url(self) -> str:
        """The store's URL for a command line, without the password before the host and all our options but `schema`."""
        head, _, rest = self.settings.dsn.partition("://")
        user, at, host = rest.rpartition("@")
        name = user.partition(":")[0]
        base = f"{head}://{name}{at}{host}"
        if self.settings.schema == "mainspring":
            return base
        return f"{base}{'&' if '?' in base else '?'}schema={self.settings.schema}"


async def upgrade_schema(settings: PostgresSettings, *, only_print: bool) -> str:
    """Run the migration scripts that have not finished; return a text that lists them, for the command line.

    A schema that is missing is created. With `only_print`, run nothing and return the SQL that would run. Raises:
    `StoreError`.
    """
    db = Database(settings, None, None)
    connection = await db.connect_when_up(no_time_limit=True)
    try:
        _check_server(connection, settings)
        state = await migrations.read_state(connection, settings.schema)
        if only_print:
            return migrations.sql_text(state, settings.schema) or "-- nothing to do"
        ran = await migrations.migrate(connection, settings.schema)
    except DRIVER_ERRORS as error:
        raise translate(error, settings.where) from error
    finally:
        await _close(connection)
    if not ran:
        return f"schema {settings.schema!r} is up to date"
    return "\n".join(f"step {script.number}: {script.name}" for script in ran)


def _check_server(connection: Any, settings: PostgresSettings) -> None:
    """Raise `StoreError` if the server is older than OLDEST_SERVER_VERSION, or the database's encoding is not UTF8."""
    version = connection.get_server_version()
    if version.major < OLDEST_SERVER_VERSION:
        raise StoreError(
            f"{settings.where} is PostgreSQL {version.major}.{version.minor}; "
            f"Mainspring needs {OLDEST_SERVER_VERSION} or newer"
        )
    encoding = connection.get_settings().server_encoding
    if encoding.upper() not in ("UTF8", "UTF-8"):
        raise StoreError(
            f"the database of {settings.where} has encoding {encoding}; create one with UTF8: "
            "createdb --encoding UTF8 --template template0 …"
        )


async def _set_tcp_user_timeout(connection: Any) -> None:
    """Make TCP close the connection if the server has not acknowledged data for 5 seconds (default: 15 minutes)."""
    transport = getattr(connection, "_transport", None)
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError, AttributeError):  # a Unix domain socket lacks the option
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TCP_USER_TIMEOUT_MS)


async def _close(connection: Any) -> None:
    """Close a connection, or cut it if that fails or takes more than 5 seconds."""
    try:
        await connection.close(timeout=5.0)
    except DRIVER_ERRORS:
        connection.terminate()
