"""Connections of a simulated world to a real PostgreSQL server; virtual time stands still while the server works.

The connections are on an event loop of their own, the real loop. Each call that sends a statement runs the real loop
until the server is quiet: every statement is answered, or waits for a lock that another of these connections holds. So
the seed of the world determines the order of everything that happens on the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import asyncpg

from mainspring.backends.postgres import migrations
from mainspring.backends.postgres.database import Connection
from mainspring.backends.postgres.settings import PostgresSettings
from mainspring.model.errors import MainspringError

T = TypeVar("T")
P = TypeVar("P")
#: Seconds to wait for an answer before querying whether the statement waits for a lock.
_ANSWER_SECONDS = 0.01
#: Seconds after which a server that is not quiet counts as stuck.
_MAX_BUSY_SECONDS = 60.0
#: Session settings of the store's own connections, but without time-outs: the world applies them in virtual time (see
#: `simulated_postgres`).
_SESSION = {
    "application_name": "mainspring-simulation",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "synchronous_commit": "off",
}
_BLOCKERS = "SELECT p.pid, pg_blocking_pids(p.pid) AS by FROM unnest($1::integer[]) AS p(pid)"

_swap_current_task: Callable[[asyncio.AbstractEventLoop, Any], Any] = getattr(
    asyncio.tasks,
    "_swap_current_task",
    lambda loop, task: None,  # before Python 3.12 each loop has its own
)


class WireConnection:
    """One real connection; `answer` is the task that executes its last statement, None if there was none."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.pid: int = connection.get_server_pid()
        self.answer: asyncio.Task[Any] | None = None

    @property
    def busy(self) -> bool:
        """True while the server has not answered the last statement."""
        return self.answer is not None and not self.answer.done()


class Wire:
    """Real connections to one schema, used by one world after the other.

    One more connection, the monitor, asks the server which statements wait, and cancels statements.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self.settings = settings
        self._loop = asyncio.new_event_loop()
        self._monitor: Any = None
        self._free: list[WireConnection] = []
        self._used: list[WireConnection] = []
        self._tables: list[str] = []
        self._awaited: asyncio.Task[Any] | None = None
        self._do(self._open())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._run(self._loop.run_until_complete, work)

    def _run(self, call: Callable[[P], T], what: P) -> T:
        """Return `call(what)`, a call that runs the real loop, while the virtual loop is running in this thread.

        asyncio allows one running loop per thread, so during the call the virtual loop is not set as the running one.
        """
        outer = asyncio._get_running_loop()
        task = None if outer is None else _swap_current_task(outer, None)
        asyncio._set_running_loop(None)
        try:
            return call(what)
        finally:
            asyncio._set_running_loop(outer)
            if outer is not None:
                _swap_current_task(outer, task)

    def _is_answered_soon(self, answer: asyncio.Task[Any]) -> bool:
        """Run the real loop until the answer arrives, for at most `_ANSWER_SECONDS`; return True if it arrived."""
        late = self._loop.call_later(_ANSWER_SECONDS, self._loop.stop)
        answer.add_done_callback(self._stop)
        self._awaited = answer
        self._loop.run_forever()
        self._awaited = None
        answer.remove_done_callback(self._stop)
        late.cancel()
        return answer.done()

    def _stop(self, answer: asyncio.Task[Any]) -> None:
        if answer is self._awaited:  # else the time-out has stopped the loop already, and it runs for another call now
            self._loop.stop()

    # ── for the world, which stands still meanwhile ────────────────────────

    def line(self) -> WireConnection:
        """Return a connection that is idle and in no transaction; it belongs to the caller until `drop`."""
        line = self._free.pop(0) if self._free else self._do(self._connect())
        self._used.append(line)
        return line

    def ask(self, line: WireConnection, verb: str, sql: str, parameters: tuple[Any, ...]) -> None:
        """Send a statement and wait until the server is quiet. After that, `line.busy` is True if it waits for a lock.

        `verb`: the method of the connection to call, such as "fetch".
        """
        line.answer = self._loop.create_task(getattr(line.connection, verb)(sql, *parameters))
        if not self._run(self._is_answered_soon, line.answer) or any(one.busy for one in self._used):
            self._do(self._wait_until_quiet())

    def drop(self, line: WireConnection) -> None:
        """Roll back a connection as if its client had disconnected, and keep it for reuse."""
        if line in self._used:
            self._used.remove(line)
            try:
                self._do(self._reset(line))
            except BaseException:  # its state is unknown, so it cannot be reused
                line.connection.terminate()
                raise
            self._free.append(line)

    def cancel(self, line: WireConnection) -> None:
        """Cancel the statement of a connection that waits for a lock."""
        self._do(self._cancel(line))

    def clear(self) -> None:
        """Drop all connections and empty the schema for the next world; sequences begin with 1 again."""
        for line in list(self._used):
            self.drop(line)
        self._do(self._monitor.execute(f"TRUNCATE {', '.join(self._tables)} RESTART IDENTITY"))

    def close(self) -> None:
        """Close all connections."""
        self._do(self._close())
        self._loop.close()

    # ── on the real loop ──────────────────────────────────────────────────

    async def _open(self) -> None:
        """Connect the monitor, create the schema if it is missing, and switch off autovacuum for its tables."""
        schema = self.settings.schema
        self._monitor = (await self._connect()).connection
        state = await migrations.read_state(self._monitor, schema)
        if not state.exists:
            await migrations.create(self._monitor, schema)
        rows = await self._monitor.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY 1", schema)
        kept = ("migration", "identity")
        self._tables = [f'"{schema}"."{row["tablename"]}"' for row in rows if row["tablename"] not in kept]
        for table in self._tables:  # else a vacuum would run at a moment that the seed does not determine
            await self._monitor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")

    async def _connect(self) -> WireConnection:
        connection = await asyncpg.connect(
            self.settings.dsn, connection_class=Connection, statement_cache_size=256, server_settings=_SESSION
        )
        return WireConnection(connection)

    async def _close(self) -> None:
        for connection in [self._monitor, *(line.connection for line in (*self._free, *self._used))]:
            await connection.close(timeout=_MAX_BUSY_SECONDS)

    async def _reset(self, line: WireConnection) -> None:
        """Cancel the statement of a connection that is under way, if any, and roll back its transaction."""
        if line.busy:
            await self._cancel(line)
        line.answer = None
        if line.connection.is_in_transaction():
            await line.connection.execute("ROLLBACK")
            await self._wait_until_quiet()

    async def _cancel(self, line: WireConnection) -> None:
        if line.answer is not None:
            while line.busy:
                await self._monitor.execute("SELECT pg_cancel_backend($1)", line.pid)
                await asyncio.wait([line.answer], timeout=_ANSWER_SECONDS)
        await self._wait_until_quiet()

    async def _blockers(self, busy: list[WireConnection]) -> dict[int, set[int]]:
        """Return, for the server process id of each busy connection, the process ids whose locks it waits for."""
        rows = await self._monitor.fetch(_BLOCKERS, [line.pid for line in busy])
        return {row["pid"]: set(row["by"]) for row in rows}

    async def _wait_until_quiet(self) -> None:
        """Wait until every statement is answered, or waits for a lock of another of these connections.

        A circle of waiting connections is not quiet: the server will break it. Raises: MainspringError if the server
        is not quiet after `_MAX_BUSY_SECONDS`.
        """
        deadline = self._loop.time() + _MAX_BUSY_SECONDS
        waiting: set[int] = set()
        while True:
            busy = [line for line in self._used if line.busy and line.pid not in waiting]
            if busy:
                await asyncio.wait([line.answer for line in busy if line.answer is not None], timeout=_ANSWER_SECONDS)
            busy = [line for line in self._used if line.busy]
            if not busy:
                return
            blockers = await self._blockers(busy)
            ours = {line.pid for line in self._used}
            waiting = {pid for pid, by in blockers.items() if by and by <= ours}
            if len(waiting) == len(busy) and any(by - waiting for by in blockers.values()):
                return  # every busy connection waits, and not all of them in a circle
            if self._loop.time() > deadline:
                raise MainspringError(f"the server does not come to rest: {blockers}")
