"""A simulated world's way to a real PostgreSQL: statements go to the server while virtual time stands still.

The connections live on a loop of their own. Whoever sends a statement runs that loop until the server is quiet again:
each statement under way is answered, or waits for a lock that another of these connections holds. So what the server
does next is decided by the world alone, which decides by its seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import asyncpg

from mainspring.model.errors import MainspringError
from mainspring.stores.postgres import migrations
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.settings import PostgresSettings

T = TypeVar("T")
P = TypeVar("P")
#: So long an answer may take, in seconds, before the server is asked whether the statement waits for a lock.
_SOON = 0.01
#: The server is broken, or we are, when it is not quiet after so many seconds.
_PATIENCE = 60.0
#: As the store's own connections, but that the world keeps the time: see `simulated_postgres`.
_SESSION = {
    "application_name": "mainspring-simulation",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "synchronous_commit": "off",
}
_BLOCKERS = "SELECT p.pid, pg_blocking_pids(p.pid) AS by FROM unnest($1::integer[]) AS p(pid)"

_put_aside: Callable[[asyncio.AbstractEventLoop, Any], Any] = getattr(
    asyncio.tasks,
    "_swap_current_task",
    lambda loop, task: None,  # before Python 3.12 each loop has its own
)


class Line:
    """One real connection; `answer` is the statement under way."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.pid: int = connection.get_server_pid()
        self.answer: asyncio.Task[Any] | None = None

    @property
    def busy(self) -> bool:
        """True while the server has not answered."""
        return self.answer is not None and not self.answer.done()


class Wire:
    """Real connections to one schema, kept from world to world."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.settings = settings
        self._loop = asyncio.new_event_loop()
        self._monitor: Any = None
        self._free: list[Line] = []
        self._used: list[Line] = []
        self._tables: list[str] = []
        self._do(self._open())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._run(self._loop.run_until_complete, work)

    def _run(self, call: Callable[[P], T], what: P) -> T:
        """Run the real loop inside a step of the virtual one, which is put aside meanwhile."""
        outer = asyncio._get_running_loop()
        task = None if outer is None else _put_aside(outer, None)
        asyncio._set_running_loop(None)
        try:
            return call(what)
        finally:
            asyncio._set_running_loop(outer)
            if outer is not None:
                _put_aside(outer, task)

    def _answered(self, answer: asyncio.Task[Any]) -> bool:
        """The usual case: nobody is in the way, and the answer is there soon."""
        late = self._loop.call_later(_SOON, self._loop.stop)
        answer.add_done_callback(self._stop)
        self._loop.run_forever()
        answer.remove_done_callback(self._stop)
        late.cancel()
        return answer.done()

    def _stop(self, _: asyncio.Task[Any]) -> None:
        self._loop.stop()

    # ── for the world, which stands still meanwhile ────────────────────────

    def line(self) -> Line:
        """A connection, idle and in no transaction."""
        line = self._free.pop(0) if self._free else self._do(self._connect())
        self._used.append(line)
        return line

    def ask(self, line: Line, verb: str, sql: str, parameters: tuple[Any, ...]) -> None:
        """Send a statement; on return the server is quiet, and `line.busy` tells whether it waits for a lock."""
        line.answer = self._loop.create_task(getattr(line.connection, verb)(sql, *parameters))
        if not self._run(self._answered, line.answer) or any(one.busy for one in self._used):
            self._do(self._quiet())

    def drop(self, line: Line) -> None:
        """As if the client were gone: what it has not committed is undone."""
        if line in self._used:
            self._used.remove(line)
            try:
                self._do(self._reset(line))
            except BaseException:  # then nobody can use it any more
                line.connection.terminate()
                raise
            self._free.append(line)

    def cancel(self, line: Line) -> None:
        """End a statement that waits for a lock."""
        self._do(self._cancel(line))

    def clear(self) -> None:
        """Forget the world that was: no rows, and the first number is 1 again."""
        for line in list(self._used):
            self.drop(line)
        self._do(self._monitor.execute(f"TRUNCATE {', '.join(self._tables)} RESTART IDENTITY"))

    def close(self) -> None:
        """Let the connections go."""
        self._do(self._close())
        self._loop.close()

    # ── on the real loop ──────────────────────────────────────────────────

    async def _open(self) -> None:
        schema = self.settings.schema
        self._monitor = (await self._connect()).connection
        state = await migrations.read_state(self._monitor, schema)
        if not state.exists:
            await migrations.create(self._monitor, schema)
        rows = await self._monitor.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY 1", schema)
        kept = ("migration", "identity")
        self._tables = [f'"{schema}"."{row["tablename"]}"' for row in rows if row["tablename"] not in kept]
        for table in self._tables:  # a vacuum has no place in the world's order
            await self._monitor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")

    async def _connect(self) -> Line:
        connection = await asyncpg.connect(
            self.settings.dsn, connection_class=Connection, statement_cache_size=256, server_settings=_SESSION
        )
        return Line(connection)

    async def _close(self) -> None:
        for connection in [self._monitor, *(line.connection for line in (*self._free, *self._used))]:
            await connection.close(timeout=_PATIENCE)

    async def _reset(self, line: Line) -> None:
        if line.busy:
            await self._cancel(line)
        line.answer = None
        if line.connection.is_in_transaction():
            await line.connection.execute("ROLLBACK")
            await self._quiet()

    async def _cancel(self, line: Line) -> None:
        if line.answer is not None:
            while line.busy:
                await self._monitor.execute("SELECT pg_cancel_backend($1)", line.pid)
                await asyncio.wait([line.answer], timeout=_SOON)
        await self._quiet()

    async def _quiet(self) -> None:
        """Wait until every statement is answered or waits for a lock of somebody who is not at work."""
        deadline = self._loop.time() + _PATIENCE
        waiting: set[int] = set()
        while True:
            busy = [line for line in self._used if line.busy and line.pid not in waiting]
            if busy:
                await asyncio.wait([line.answer for line in busy if line.answer is not None], timeout=_SOON)
            busy = [line for line in self._used if line.busy]
            if not busy:
                return
            rows = await self._monitor.fetch(_BLOCKERS, [line.pid for line in busy])
            blockers = {row["pid"]: set(row["by"]) for row in rows}
            ours = {line.pid for line in self._used}
            waiting = {pid for pid, by in blockers.items() if by and by <= ours}
            if len(waiting) == len(busy) and any(by - waiting for by in blockers.values()):
                return  # all wait, and not in a circle, which the server would break
            if self._loop.time() > deadline:
                raise MainspringError(f"the server does not come to rest: {blockers}")
