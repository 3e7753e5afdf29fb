"""Simulated worlds on a real PostgreSQL: every process has a real store object, which runs on the world's loop.

Its statements go through a `Wire`. Between two statements of a transaction others have theirs, processes stop and die,
connections break before or after a statement's effect. What the server does by its own clock the world does by its own:
a transaction that is idle for three seconds is ended, and so is a wait for a lock after five.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import asyncpg
from msgspec.structs import replace

from mainspring.stores.postgres import PostgresStore
from mainspring.stores.postgres.database import Database
from mainspring.stores.postgres.pool import Pool
from mainspring.stores.postgres.settings import read_url
from mainspring.testing.simulated_loop import SimulatedLoop, TrueClock
from mainspring.testing.simulated_store import FAIR, SimulatedHints, Weather
from mainspring.testing.simulated_wire import Line, Wire
from mainspring.testing.simulation import Outcome, run_world

#: Seconds, as `database.py` asks the server for.
_LOCK, _IDLE = 5.0, 3.0
#: Of the odds that a verb fails, so much falls on each of its statements.
_SHARE = 0.2


class _Connection:
    """What the store sees of a connection."""

    def __init__(self, ground: PostgresGround, rng: random.Random, weather: Weather) -> None:
        self._ground = ground
        self._loop = ground.loop
        self._rng = rng
        self._weather = weather
        self._line: Line | None = ground.wire.line()
        self._waiter: asyncio.Future[None] | None = None
        self._sent = 0
        self._outside = contextvars.Context()

    # ── what the store asks for ────────────────────────────────────────────

    async def fetch(self, sql: str, *parameters: Any, timeout: float | None = None) -> Any:
        return await self._ask("fetch", sql, parameters)

    async def fetchrow(self, sql: str, *parameters: Any, timeout: float | None = None) -> Any:
        return await self._ask("fetchrow", sql, parameters)

    async def fetchval(self, sql: str, *parameters: Any, timeout: float | None = None) -> Any:
        return await self._ask("fetchval", sql, parameters)

    async def execute(self, sql: str, *parameters: Any, timeout: float | None = None) -> Any:
        return await self._ask("execute", sql, parameters)

    def is_closed(self) -> bool:
        return self._line is None

    def terminate(self) -> None:
        """The connection is gone, and with it what was not committed."""
        line, self._line = self._line, None
        if line is not None:
            self._ground.drop(line)

    # ── one statement ──────────────────────────────────────────────────────

    async def _ask(self, verb: str, sql: str, parameters: tuple[Any, ...]) -> Any:
        rng, weather = self._rng, self._weather
        self._sent += 1
        slow = weather.slow / 4 if weather.slow > FAIR else FAIR
        await asyncio.sleep(rng.random() * slow if rng.random() < 0.1 else 0)
        if rng.random() < weather.before * _SHARE:
            self.terminate()
        line = self._usable()
        self._ground.ask(line, verb, sql, parameters)
        if line.busy:
            await self._locked(line)
        self._watch(line)
        if rng.random() < weather.after * _SHARE:
            self.terminate()
        await asyncio.sleep(0)  # the answer is under way: whoever waits for it may die here
        self._usable()
        assert line.answer is not None, "a line that was asked has an answer"
        return line.answer.result()

    def _usable(self) -> Line:
        if self._line is None:
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return self._line

    async def _locked(self, line: Line) -> None:
        """The server waits for somebody's lock: until that one is gone, for so long at most."""
        self._waiter = self._loop.create_future()
        try:
            async with asyncio.timeout(_LOCK):
                await self._waiter
        except TimeoutError:
            self._ground.cancel(line)
            raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout") from None
        except asyncio.CancelledError:
            if self._line is line:
                self._ground.cancel(line)
            raise
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Go on if the lock is ours now."""
        if self._waiter is not None and not self._waiter.done() and (self._line is None or not self._line.busy):
            self._waiter.set_result(None)

    def _watch(self, line: Line) -> None:
        """Begin to count how long a transaction is idle."""
        if line.connection.is_in_transaction():
            self._loop.call_later(_IDLE, self._idle, self._sent, context=self._outside)

    def _idle(self, sent: int) -> None:
        line = self._line
        if self._sent == sent and line is not None and not line.busy and line.connection.is_in_transaction():
            self.terminate()


class _Database(Database):
    """The store's own, on lines of a wire."""

    def __init__(self, ground: PostgresGround, rng: random.Random, weather: Weather) -> None:
        super().__init__(ground.wire.settings, TrueClock(ground.loop), None)
        self._ground = ground
        self._rng = rng
        self._weather = weather
        self._sim_pool = Pool(self.connect, self.settings.pool)
        self.connections: list[_Connection] = []

    def _usable(self) -> Any:
        return self._sim_pool

    def dial(self) -> _Connection:
        """A new connection."""
        connection = _Connection(self._ground, self._rng, self._weather)
        self.connections = [known for known in self.connections if not known.is_closed()]
        self.connections.append(connection)
        return connection

    async def connect(self, address: str | None = None, *, unhurried: bool = False) -> Any:
        return self.dial()

    async def open(self) -> None:
        """The wire is open."""

    async def close(self) -> None:
        """The wire stays; what is on it goes."""
        self.hang_up()

    def hang_up(self) -> None:
        """Every connection is gone."""
        for connection in self.connections:
            connection.terminate()
        self.connections.clear()


class _Notices:
    """Hints in an order that a seed repeats, in the place of LISTEN and NOTIFY."""

    def __init__(self, hints: SimulatedHints) -> None:
        self._hints = hints

    def tell(self) -> None:
        """Let the others know."""
        self._hints.notify()

    async def wait(self, timeout: float) -> bool:
        """True when somebody said something."""
        return await self._hints.wait(timeout)

    async def close(self) -> None:
        """Nothing is open."""


def worlds_on(url: str) -> Callable[..., Outcome]:
    """`run_world` for small worlds on this server, in a schema of their own, which is emptied for each."""
    wire = Wire(replace(read_url(url), schema="mainspring_simulation"))
    return partial(run_world, ground=partial(PostgresGround, wire), small=True)


class PostgresGround:
    """One schema of a real server, empty at first; a store for each process."""

    on_wire = 0.0  # a process may die between any two statements instead

    def __init__(self, wire: Wire, loop: SimulatedLoop, seed: int, hints_lost: float) -> None:
        wire.clear()
        self.wire = wire
        self.loop = loop
        self._seed = seed
        self._notices = _Notices(SimulatedHints(loop, random.Random(f"{seed}:hints"), hints_lost))  # noqa: S311 - no secret
        self._databases: dict[str, list[_Database]] = {}
        self.store = self.connect("judge", Weather())

    def connect(self, process: str, weather: Weather) -> PostgresStore:
        store = PostgresStore(self.wire.settings)
        rng = random.Random(f"{self._seed}:{process}:wire")  # noqa: S311 - no secret
        database = _Database(self, rng, weather)
        store._db = database
        store._notices = self._notices  # type: ignore[assignment]  # the same three verbs
        self._databases.setdefault(process, []).append(database)
        return store

    def gone(self, process: str) -> None:
        for database in self._databases.pop(process, ()):
            database.hang_up()

    def close(self) -> None:
        for process in list(self._databases):
            self.gone(process)

    # ── what changes who waits for whom ────────────────────────────────────

    def ask(self, line: Line, verb: str, sql: str, parameters: tuple[Any, ...]) -> None:
        """Send a statement, and let those go on whose lock it left."""
        self.wire.ask(line, verb, sql, parameters)
        self._settle()

    def drop(self, line: Line) -> None:
        """Undo what is not committed on a line."""
        self.wire.drop(line)
        self._settle()

    def cancel(self, line: Line) -> None:
        """End a wait for a lock."""
        self.wire.cancel(line)
        self._settle()

    def _settle(self) -> None:
        for databases in self._databases.values():
            for database in databases:
                for connection in database.connections:
                    connection.wake()
