"""The database of a store: its connection pool, sessions and transactions, and the check or creation of its schema."""

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
#: Settings of every session. Each statement has an index to use. So sequential scans and hash and merge joins are off:
#: a plan that was made while the tables were small must not scan them when they are large. The best plan never depends
#: on the parameters, so the server makes one plan for each statement. By default, it would plan every claim anew.
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
    """How a claim begins: by a statement for runs without gates, by one for gates with room, or by several statements.

    The next claim begins in the mode that the runs of the last claims needed.
    """

    #: Runs without gates.
    UNGATED = 0
    #: Runs with gates that have room.
    OPEN = 1
    #: Runs at gates that are full, or runs that crashed before: only Python code can decide.
    CONTENDED = 2


class Connection(asyncpg.Connection):  # type: ignore[misc]  # the driver is not typed
    """A driver's connection without the reset between two uses, because our sessions leave no state behind.

    The driver needs the server's descriptions of built-in types. They are fetched once per process, not once per
    connection.
    """

    #: The descriptions of built-in types, by the set of object ids that the driver asked for. They are equal on every
    #: server.
    _builtin_types: ClassVar[dict[frozenset[int], Any]] = {}

    def get_reset_query(self) -> str:
        return ""

    async def _introspect_types(self, typeoids: Any, timeout: Any) -> Any:
        """Return the descriptions of the types with the object ids `typeoids`, and the statement that fetched them.

        The driver calls this. If all types are built in, the descriptions come from a cache, which the first call
        fills. A stand-in then takes the place of the statement, of which the driver reads only the name. `timeout`: the
        driver's limit for the statement.
        """
        key = frozenset(typeoids)
        if max(key) >= _FIRST_USER_TYPE_OID:
            return await super()._introspect_types(typeoids, timeout)
        if key not in self._builtin_types:
            types, _ = await super()._introspect_types(typeoids, timeout)
            self._builtin_types[key] = types
        return self._builtin_types[key], SimpleNamespace(name="known")


class Session:
    """Runs SQL statements on one connection of the driver.

    `qualify` puts the schema's name into a statement, in place of each §.
    """

    def __init__(self, connection: Any, qualify: Callable[[str], str]) -> None:
        self.connection = connection
        self._qualify = qualify

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        """Run a statement and return its records; `parameters`: the values of $1, $2, …."""
        records: list[Any] = await self.connection.fetch(self._qualify(sql), *parameters)
        return records

    async def row(self, sql: str, *parameters: Any) -> Any:
        """Run a statement and return its first record, or None if it returns no record.

        `parameters`: the values of $1, $2, ….
        """
        return await self.connection.fetchrow(self._qualify(sql), *parameters)

    async def value(self, sql: str, *parameters: Any) -> Any:
        """Run a statement and return the first column of its first record, or None if it returns no record.

        `parameters`: the values of $1, $2, ….
        """
        return await self.connection.fetchval(self._qualify(sql), *parameters)


class Database:
    """The connection pool and other state that all methods of one store share.

    Only the event loop that opened it may use it, except `now` and `qualify`, which any thread may call.
    """

    def __init__(
        self, settings: PostgresSettings, clock: Clock | None, failpoint: Callable[[str], None] | None
    ) -> None:
        """Remember the arguments; nothing is opened. `clock` and `failpoint` are for tests, and None outside tests.

        `clock` takes the place of the server's clock. `failpoint` is called with the names of places in the code that
        are reached.
        """
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._failpoint = failpoint
        self._pool: Pool | None = None
        self._pid = 0
        #: The gate mode that the last claim needed. The next claim begins with it.
        self.gate_mode = GateMode.UNGATED
        #: By id: the runs that this object claimed, as they were at the claim. A success takes the fast path of `apply`
        #: only if its run is here, with the epoch of the change.
        self.claimed: dict[str, Run] = {}
        self.low_water = ClaimLowWater()
        self._qualified: dict[str, str] = {}
        self._qualify = migrations.schema_qualifier(settings.schema)

    def qualify(self, sql: str) -> str:
        """Return `sql` with the quoted name of the store's schema in place of each § and each {schema}."""
        found = self._qualified.get(sql)
        if found is None:
            found = self._qualified[sql] = self._qualify(sql)
        return found

    def remember_claims(self, claims: list[Claim]) -> None:
        """Add the runs of claims to `claimed`, where they stay until `apply` is given a change under their lease.

        If `claimed` holds more than MAX_REMEMBERED_CLAIMS runs, empty it first. A run removed in this way only loses
        the fast path for its success.
        """
        if len(self.claimed) > MAX_REMEMBERED_CLAIMS:  # runs whose lease was lost are never removed one by one
            self.claimed.clear()
        for claim in claims:
            self.claimed[claim.run.id] = claim.run

    def now(self, now: Ms | None) -> Ms | None:
        """Return the instant to send to the server as parameter `now` of a statement.

        Outside tests it is None: the server's clock decides. In a test it is `now` if this is not None, else the time
        of the test's clock if the store was created with one.
        """
        return now if now is not None or isinstance(self.clock, SystemClock) else self.clock.now()

    def reach(self, point: str) -> None:
        """Call the `failpoint` of a test, if there is one, with `point`, the name of the place reached in the code."""
        if self._failpoint is not None:
            self._failpoint(point)

    # ── statements ─────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Lend a connection of the pool as a Session, for the time of an `async with` block.

        A driver's error inside the block becomes `ConnectionLost` if the connection broke, and `WriteConflict` if two
        writers collided; both contain a `StoreError`. Any other driver's error becomes a `StoreError`, and so does a
        failure to get a connection. A connection that broke, or whose block was cancelled, is cut.
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

        `verb` begins the names of the points that `reach` gets, such as `apply:before_commit`. Raises: `StoreError`,
        `ConnectionLost`, `WriteConflict`.
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
        """Lend a session for one statement, which commits by itself.

        Behind a pooler, and in a test with a `failpoint`, a `transaction` surrounds the statement. `verb` begins the
        names of the points that `reach` then gets. Raises: `StoreError`, `ConnectionLost`, `WriteConflict`.
        """
        if self._failpoint is not None or self.settings.pooler:
            async with self.transaction(verb) as session:
                yield session
        else:
            async with self.session() as session:
                yield session

    @contextlib.asynccontextmanager
    async def read_only(self) -> AsyncIterator[Session]:
        """Lend a session for statements that change no row; each statement sees its own snapshot of the data.

        Behind a pooler a transaction surrounds the statements, because session settings last for one transaction only.
        Raises: `StoreError`, `ConnectionLost`, `WriteConflict`.
        """
        if self.settings.pooler:
            async with self.transaction("read") as session:
                yield session
        else:
            async with self.session() as session:
                yield session

    @property
    def _begin(self) -> str:
        """SQL that begins a transaction.

        Behind a pooler it also makes the session settings, which then end with the transaction.
        """
        if not self.settings.pooler:
            return "BEGIN"
        return "BEGIN; " + "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in _SESSION_SETTINGS.items())

    def is_open(self) -> bool:
        """Return True if the database was opened and not closed since."""
        return self._pool is not None

    def _require_pool(self) -> Pool:
        """Return the pool. Raises: `StoreError` if the store is not open, or was opened before this process forked."""
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
        """Wait for the server, check it, create the schema or check its version, and create the pool.

        Do nothing if this process has the database open already. Raises: `SchemaMismatch` if the schema needs a
        migration, is newer than this Mainspring, or holds another program's tables; `StoreError` for any other failure.
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
        """Close all connections of the pool; connections still in use after 5 seconds are cut.

        A process that was forked after `open` closes none, because the connections belong to its parent.
        """
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            try:
                with contextlib.suppress(*DRIVER_ERRORS):
                    async with asyncio.timeout(5.0):
                        await pool.close()
            finally:  # also when the call is cancelled
                pool.terminate()

    async def connect(self, address: str | None = None, *, no_time_limit: bool = False) -> Any:
        """Open and return a connection that the caller closes; the pool opens its connections by this method, too.

        `address`: the host:port to connect to; None: the address in the store's URL. With `no_time_limit` the server
        sets no time limit for statements; the driver does, unless a call gives a `timeout`. Raises: the driver's
        errors, untranslated.
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

        `settings.wait` limits the time for all tries. A failure that has another cause, such as a refused password, is
        raised at once. With `no_time_limit` the server sets no time limit for statements. Raises: `StoreError`, also if
        the server is not up in time.
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
        """Check the server and the version of the schema; create the schema if it is missing.

        Raises: `SchemaMismatch` if the schema needs a migration, is newer than this Mainspring, or holds another
        program's tables; `StoreError` if the server cannot be used; the driver's errors.
        """
        settings = self.settings
        _check_server(connection, settings)
        state = await migrations.read_state(connection, settings.schema)
        if not state.exists:
            try:
                await migrations.create(connection, settings.schema)
            except asyncpg.InsufficientPrivilegeError as error:
                raise StoreDenied(
                    f"{settings.where}: the user may not create schema {settings.schema!r} ({error}). "
                    "Let the owner of the database run: mainspring migrate --sql --store URL | psql, or "
                    "GRANT CREATE ON DATABASE … TO …"
                ) from error
            return
        refusal = migrations.find_refusal(state, self.shown_url)
        if refusal is not None:
            raise refusal

    @property
    def shown_url(self) -> str:
        """The store's URL as error texts show it in a command to run.

        It has no password, neither before the host nor as an option. Of Mainspring's own options it has only `schema`,
        and only if this is not the default.
        """
        address, _, query = self.settings.dsn.partition("?")
        head, _, rest = address.partition("://")
        user, at, host = rest.rpartition("@")
        name = user.partition(":")[0]
        options = [one for one in query.split("&") if one and one.partition("=")[0] not in ("password", "sslpassword")]
        if self.settings.schema != "mainspring":
            options.append(f"schema={self.settings.schema}")
        return f"{head}://{name}{at}{host}{'?' if options else ''}{'&'.join(options)}"


async def upgrade_schema(settings: PostgresSettings, *, only_print: bool) -> str:
    """Run the migration scripts that still have to run; return a text for the command line that lists them.

    A schema that is missing is created. If there is nothing to run, the text says so. With `only_print`, run nothing
    and return the SQL that would run, or an SQL comment if there is none. Raises: `SchemaMismatch` if the schema is
    newer than this Mainspring or holds another program's tables; `StoreError` for any other failure.
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
    """Let TCP close the connection if the server acknowledges no data for 5 seconds; the default is 15 minutes.

    A connection without TCP, or a system without this option, is left as it is.
    """
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
