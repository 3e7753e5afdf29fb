"""A small pool of connections to one server: opening it, its transactions, its clock and its patience."""

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

from mainspring.model.errors import StoreDenied, StoreError, StoreUnavailable
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.ports.clock import Clock, SystemClock
from mainspring.ports.store import Claim
from mainspring.stores.postgres import migrations
from mainspring.stores.postgres.errors import BROKEN, DRIVER, MET, starting, translate
from mainspring.stores.postgres.marks import Marks
from mainspring.stores.postgres.pool import Pool
from mainspring.stores.postgres.settings import PostgresSettings

log = logging.getLogger("mainspring.stores.postgres")

OLDEST = 14
#: More than any worker holds.
MOST_CLAIMED = 20_000
#: Types with smaller numbers are PostgreSQL's own, the same on every server.
_FIRST_OWN_TYPE = 16_384
#: Seconds between two tries to reach a server that is not there.
_FIRST_TRY, _LAST_TRY = 0.25, 4.0
#: The server ends what takes longer, in milliseconds; the driver gives up a little later, in seconds. An instance that
#: is stopped inside a transaction is cut off before those that wait for its locks lose patience.
_STATEMENT, _LOCK, _IDLE = 30_000, 5_000, 3_000
_COMMAND_SECONDS = 35.0
_CONNECT_SECONDS = 5.0
#: What is sent and not acknowledged for so long, in milliseconds, went into a hole: the connection is given up.
_UNACKNOWLEDGED = 5_000
#: Every statement goes by an index. A plan made while the tables were small must not read them whole for ever. No plan
#: depends on the values, so each is made once: by itself, the server would make one for every claim.
_SESSION = {
    "statement_timeout": str(_STATEMENT),
    "lock_timeout": str(_LOCK),
    "idle_in_transaction_session_timeout": str(_IDLE),
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}


class Gated(IntEnum):
    """What claims meet: no gates, gates with room, or gates that refuse and runs that crashed before."""

    NONE = 0
    PASS = 1
    HARD = 2


class Met(Exception):
    """Two writers met and this one was rolled back; `why` says it in our words."""

    def __init__(self, why: StoreError) -> None:
        super().__init__(str(why))
        self.why = why


class Broken(Exception):
    """The connection went away while something was under way; `why` says how, in our words."""

    def __init__(self, why: StoreError) -> None:
        super().__init__(str(why))
        self.why = why


class Connection(asyncpg.Connection):  # type: ignore[misc]  # the driver is not typed
    """Leaves no state behind in a session, so nothing is reset between two uses."""

    #: What the driver asks a server about types, once for each connection; of built-in ones all say the same.
    _known: ClassVar[dict[frozenset[int], Any]] = {}

    def get_reset_query(self) -> str:
        return ""

    async def _introspect_types(self, typeoids: Any, timeout: Any) -> Any:
        key = frozenset(typeoids)
        if max(key) >= _FIRST_OWN_TYPE:
            return await super()._introspect_types(typeoids, timeout)
        if key not in self._known:
            types, _ = await super()._introspect_types(typeoids, timeout)
            self._known[key] = types
        return self._known[key], SimpleNamespace(name="known")


class Session:
    """Statements on one connection, which may be a caller's own."""

    def __init__(self, connection: Any, place: Callable[[str], str]) -> None:
        self.connection = connection
        self._place = place

    async def fetch(self, sql: str, *parameters: Any) -> list[Any]:
        """The records of a statement."""
        records: list[Any] = await self.connection.fetch(self._place(sql), *parameters)
        return records

    async def row(self, sql: str, *parameters: Any) -> Any:
        """The first record, or None."""
        return await self.connection.fetchrow(self._place(sql), *parameters)

    async def value(self, sql: str, *parameters: Any) -> Any:
        """The first column of the first record, or None."""
        return await self.connection.fetchval(self._place(sql), *parameters)


class Database:
    """The pool and what the verbs share. Used on the loop that opened it."""

    def __init__(
        self, settings: PostgresSettings, clock: Clock | None, failpoint: Callable[[str], None] | None
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._failpoint = failpoint
        self._pool: Pool | None = None
        self._pid = 0
        #: What the last claim met: the next begins with the way that fits.
        self.gated = Gated.NONE
        #: Runs claimed here, as they were: what ends plainly need not be compared with the row.
        self.claimed: dict[str, Run] = {}
        self.marks = Marks()
        self._placed: dict[str, str] = {}
        self._put = migrations.placed(settings.schema)

    def place(self, sql: str) -> str:
        """The statement with the schema's name in it."""
        found = self._placed.get(sql)
        if found is None:
            found = self._placed[sql] = self._put(sql)
        return found

    def remember(self, claims: list[Claim]) -> None:
        """Keep what was claimed until it ends here."""
        if len(self.claimed) > MOST_CLAIMED:  # of leases that were lost
            self.claimed.clear()
        for claim in claims:
            self.claimed[claim.run.id] = claim.run

    def now(self, now: Ms | None) -> Ms | None:
        """What to tell the server about the time: nothing, unless a test's clock is in charge."""
        return now if now is not None or isinstance(self.clock, SystemClock) else self.clock.now()

    def reach(self, point: str) -> None:
        """Call the test's failpoint, if there is one."""
        if self._failpoint is not None:
            self._failpoint(point)

    # ── statements ─────────────────────────────────────────────────────────

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A connection of the pool; what happens to it is said in our words."""
        pool = self._usable()
        where = self.settings.where
        try:
            connection = await pool.acquire(timeout=_CONNECT_SECONDS)
        except DRIVER as error:
            raise translate(error, where) from error
        try:
            yield Session(connection, self.place)
        except DRIVER as error:
            why = translate(error, where)
            if isinstance(error, BROKEN):
                connection.terminate()
                raise Broken(why) from error
            raise (Met(why) if isinstance(error, MET) else why) from error
        except asyncio.CancelledError:
            connection.terminate()  # something may be under way on it
            raise
        finally:
            pool.release(connection)

    @contextlib.asynccontextmanager
    async def transaction(self, verb: str) -> AsyncIterator[Session]:
        """All of it or, on any exception, nothing."""
        async with self.session() as session:
            connection = session.connection
            await connection.execute(self._begin)
            try:
                yield session
                self.reach(f"{verb}:before_commit")
                await connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(*DRIVER):
                    if not connection.is_closed():
                        await connection.execute("ROLLBACK")
                raise
        self.reach(f"{verb}:after_commit")

    @contextlib.asynccontextmanager
    async def single(self, verb: str) -> AsyncIterator[Session]:
        """For one statement, which is a transaction of its own; a pooler or a failpoint wants to see one around it."""
        if self._failpoint is not None or self.settings.pooler:
            async with self.transaction(verb) as session:
                yield session
        else:
            async with self.session() as session:
                yield session

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[Session]:
        """For statements that change nothing."""
        async with self.session() as session:
            if self.settings.pooler:
                await session.connection.execute(self._begin)
            yield session
            if self.settings.pooler:
                await session.connection.execute("COMMIT")

    @property
    def _begin(self) -> str:
        if not self.settings.pooler:
            return "BEGIN"
        return "BEGIN; " + "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in _SESSION.items())

    def is_open(self) -> bool:
        """True between `open` and `close`."""
        return self._pool is not None

    def _usable(self) -> Pool:
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
        """Reach the server, check what it is, make or check the schema, then keep a pool."""
        if self._pool is not None and self._pid == os.getpid():
            return
        connection = await self.connect_patiently()
        try:
            await self._check(connection)
            self.reach("open:after_migrate")
        except DRIVER as error:
            raise translate(error, self.settings.where) from error
        finally:
            await _close(connection)
        self._pool = Pool(self.connect, self.settings.pool)
        self._pid = os.getpid()

    async def close(self) -> None:
        """Let the connections go."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            try:
                with contextlib.suppress(*DRIVER):
                    async with asyncio.timeout(5.0):
                        await pool.close()
            finally:  # also when whoever closes it gives up
                pool.terminate()

    async def connect(self, address: str | None = None, *, unhurried: bool = False) -> Any:
        """A connection outside the pool, perhaps to another address than the URL's, perhaps for something long."""
        at: dict[str, Any] = {}
        if address is not None:
            host, _, port = address.rpartition(":")
            at = {"host": host, "port": int(port)}
        connection = await asyncpg.connect(self.settings.dsn, connection_class=Connection, **at, **self._options())
        try:
            await _guard(connection)
            if unhurried:
                await connection.execute("SET statement_timeout = 0", timeout=_CONNECT_SECONDS)
        except BaseException:  # whoever asked may be gone, and nobody else knows of it
            connection.terminate()
            raise
        return connection

    async def connect_patiently(self, *, unhurried: bool = False) -> Any:
        """Wait for a server that is not there yet, and say so; a server that says no is believed at once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.wait / 1000
        pause = _FIRST_TRY
        while True:
            try:
                return await self.connect(unhurried=unhurried)
            except (*DRIVER, ValueError) as error:
                why = translate(error, self.settings.where)
                left = deadline - loop.time()
                if not starting(error):
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

    def _options(self) -> dict[str, Any]:
        session = {} if self.settings.pooler else _SESSION  # a pooler would refuse them
        return {
            "timeout": _CONNECT_SECONDS,
            "command_timeout": _COMMAND_SECONDS,
            "statement_cache_size": self.settings.statement_cache_size,
            "server_settings": {"application_name": self.settings.application_name, **session},
        }

    async def _check(self, connection: Any) -> None:
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
        """The URL for a command line, without the password."""
        head, _, rest = self.settings.dsn.partition("://")
        user, at, host = rest.rpartition("@")
        name = user.partition(":")[0]
        base = f"{head}://{name}{at}{host}"
        if self.settings.schema == "mainspring":
            return base
        return f"{base}{'&' if '?' in base else '?'}schema={self.settings.schema}"


async def upgrade(settings: PostgresSettings, *, only_print: bool) -> str:
    """Run what is left of the schema's scripts, or say what would run; in words for people."""
    db = Database(settings, None, None)
    connection = await db.connect_patiently(unhurried=True)
    try:
        _check_server(connection, settings)
        state = await migrations.read_state(connection, settings.schema)
        if only_print:
            return migrations.sql_text(state, settings.schema) or "-- nothing to do"
        ran = await migrations.migrate(connection, settings.schema)
    except DRIVER as error:
        raise translate(error, settings.where) from error
    finally:
        await _close(connection)
    if not ran:
        return f"schema {settings.schema!r} is up to date"
    return "\n".join(f"step {script.number}: {script.name}" for script in ran)


def _check_server(connection: Any, settings: PostgresSettings) -> None:
    version = connection.get_server_version()
    if version.major < OLDEST:
        raise StoreError(
            f"{settings.where} is PostgreSQL {version.major}.{version.minor}; Mainspring needs {OLDEST} or newer"
        )
    encoding = connection.get_settings().server_encoding
    if encoding.upper() not in ("UTF8", "UTF-8"):
        raise StoreError(
            f"the database of {settings.where} has encoding {encoding}; create one with UTF8: "
            "createdb --encoding UTF8 --template template0 …"
        )


async def _guard(connection: Any) -> None:
    """Notice a peer that is silently gone in seconds, not in the quarter of an hour that TCP takes by itself."""
    transport = getattr(connection, "_transport", None)
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError, AttributeError):  # a local socket has no such thing
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED)


async def _close(connection: Any) -> None:
    try:
        await connection.close(timeout=5.0)
    except DRIVER:
        connection.terminate()
