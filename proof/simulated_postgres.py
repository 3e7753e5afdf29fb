"""Simulated worlds on a real PostgreSQL server: every process has a real store object, which runs on the world's loop.

The statements of a store go through a `Wire`. Between two statements of a transaction, other processes send their own,
processes stop and die, and connections break before or after a statement takes effect. The world applies in virtual
time the time-outs that a server would apply by its own clock: it ends a transaction that is idle for 3 seconds, and a
wait for a lock after 5 seconds.
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

from mainspring.backends.postgres import PostgresStore
from mainspring.backends.postgres.database import Database
from mainspring.backends.postgres.pool import Pool
from mainspring.backends.postgres.settings import read_url
from proof.simulated_loop import SimulatedLoop, TrueClock
from proof.simulated_store import FAIR_DELAY_SECONDS, SimulatedHints, StoreFaults
from proof.simulated_wire import Wire, WireConnection
from proof.simulation import Outcome, run_world

#: Time-outs in seconds for a lock and for an idle transaction, equal to those that `database.py` sets on a server.
_LOCK_SECONDS, _IDLE_SECONDS = 5.0, 3.0
#: Probability of a fault in one statement, as a fraction of the probability for a whole store method.
_STATEMENT_FAULT_SHARE = 0.2


class _Connection:
    """Replaces an asyncpg connection: sends each statement through the wire, and may break before or after it.

    `store_faults` gives the delays and the probability of a break, `rng` decides.
    """

    def __init__(self, provider: PostgresProvider, rng: random.Random, store_faults: StoreFaults) -> None:
        self._provider = provider
        self._loop = provider.loop
        self._rng = rng
        self._store_faults = store_faults
        self._line: WireConnection | None = provider.wire.line()
        self._waiter: asyncio.Future[None] | None = None
        self._sent = 0
        self._outside = contextvars.Context()

    # ── methods that the store calls ───────────────────────────────────────

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
        """Close the connection and roll back its open transaction."""
        line, self._line = self._line, None
        if line is not None:
            self._provider.drop(line)

    # ── one statement ──────────────────────────────────────────────────────

    async def _ask(self, verb: str, sql: str, parameters: tuple[Any, ...]) -> Any:
        rng, store_faults = self._rng, self._store_faults
        self._sent += 1
        slow = store_faults.slow / 4 if store_faults.slow > FAIR_DELAY_SECONDS else FAIR_DELAY_SECONDS
        await asyncio.sleep(rng.random() * slow if rng.random() < 0.1 else 0)
        if rng.random() < store_faults.before * _STATEMENT_FAULT_SHARE:
            self.terminate()
        line = self._usable()
        self._provider.ask(line, verb, sql, parameters)
        if line.busy:
            await self._locked(line)
        self._watch(line)
        if rng.random() < store_faults.after * _STATEMENT_FAULT_SHARE:
            self.terminate()
        await asyncio.sleep(0)  # the process may die here, before it receives the answer
        self._usable()
        assert line.answer is not None, "a line that was asked has an answer"
        return line.answer.result()

    def _usable(self) -> WireConnection:
        if self._line is None:
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return self._line

    async def _locked(self, line: WireConnection) -> None:
        """Wait until the statement of `line` gets its lock and is answered.

        After `_LOCK_SECONDS` or if the caller is cancelled, cancel the statement. Raises: LockNotAvailableError after
        that time.
        """
        self._waiter = self._loop.create_future()
        try:
            async with asyncio.timeout(_LOCK_SECONDS):
                await self._waiter
        except TimeoutError:
            self._provider.cancel(line)
            raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout") from None
        except asyncio.CancelledError:
            if self._line is line:
                self._provider.cancel(line)
            raise
        finally:
            self._waiter = None

    def wake(self) -> None:
        """End the wait in `_locked` if the server has answered the statement, or the connection was closed."""
        if self._waiter is not None and not self._waiter.done() and (self._line is None or not self._line.busy):
            self._waiter.set_result(None)

    def _watch(self, line: WireConnection) -> None:
        """If a transaction is open, set a timer that closes the connection unless another statement is sent before."""
        if line.connection.is_in_transaction():
            self._loop.call_later(_IDLE_SECONDS, self._idle, self._sent, context=self._outside)

    def _idle(self, sent: int) -> None:
        line = self._line
        if self._sent == sent and line is not None and not line.busy and line.connection.is_in_transaction():
            self.terminate()


class _Database(Database):
    """The store's `Database`, with connections of the wire instead of asyncpg's."""

    def __init__(self, provider: PostgresProvider, rng: random.Random, store_faults: StoreFaults) -> None:
        super().__init__(provider.wire.settings, TrueClock(provider.loop), None)
        self._provider = provider
        self._rng = rng
        self._store_faults = store_faults
        self._sim_pool = Pool(self.connect, self.settings.pool)
        self.connections: list[_Connection] = []

    def _require_pool(self) -> Any:
        return self._sim_pool

    def dial(self) -> _Connection:
        """Return a new connection."""
        connection = _Connection(self._provider, self._rng, self._store_faults)
        self.connections = [known for known in self.connections if not known.is_closed()]
        self.connections.append(connection)
        return connection

    async def connect(self, address: str | None = None, *, no_time_limit: bool = False) -> Any:
        return self.dial()

    async def open(self) -> None:
        """Do nothing: the provider's wire is open."""

    async def close(self) -> None:
        """Close this store's connections; the wire stays open for other stores."""
        self.hang_up()

    def hang_up(self) -> None:
        """Close every connection of this store."""
        for connection in self.connections:
            connection.terminate()
        self.connections.clear()


class _Notifications:
    """Replaces LISTEN and NOTIFY by hints in an order that the seed determines."""

    def __init__(self, hints: SimulatedHints) -> None:
        self._hints = hints

    def request(self) -> None:
        """Send a hint to the stores of all waiting processes."""
        self._hints.notify()

    async def wait(self, timeout: float) -> bool:
        """Return True if a hint came within `timeout` seconds."""
        return await self._hints.wait(timeout)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def world_runner_on(url: str) -> Callable[..., Outcome]:
    """Return a `run_world` that runs small worlds on the server at `url`, in the schema mainspring_simulation.

    The schema is emptied before each world.
    """
    wire = Wire(replace(read_url(url), schema="mainspring_simulation"))
    return partial(run_world, provider=partial(PostgresProvider, wire), small=True)


class PostgresProvider:
    """Provides a store object for each process, all on one schema of a real server, which is empty at first."""

    on_wire = 0.0  # a process may die between any two statements instead

    def __init__(self, wire: Wire, loop: SimulatedLoop, seed: int, hints_lost: float) -> None:
        wire.clear()
        self.wire = wire
        self.loop = loop
        self._seed = seed
        self._notifications = _Notifications(SimulatedHints(loop, random.Random(f"{seed}:hints"), hints_lost))  # noqa: S311 - no secret
        self._databases: dict[str, list[_Database]] = {}
        self.store = self.connect("judge", StoreFaults())

    def connect(self, process: str, store_faults: StoreFaults) -> PostgresStore:
        store = PostgresStore(self.wire.settings)
        rng = random.Random(f"{self._seed}:{process}:wire")  # noqa: S311 - no secret
        database = _Database(self, rng, store_faults)
        store._db = database
        store._notifications = self._notifications  # type: ignore[assignment]  # the same three verbs
        self._databases.setdefault(process, []).append(database)
        return store

    def close_connections(self, process: str) -> None:
        for database in self._databases.pop(process, ()):
            database.hang_up()

    def close(self) -> None:
        for process in list(self._databases):
            self.close_connections(process)

    # ── calls that may release locks ───────────────────────────────────────

    def ask(self, line: WireConnection, verb: str, sql: str, parameters: tuple[Any, ...]) -> None:
        """Send a statement, and continue the statements that waited for locks which it released."""
        self.wire.ask(line, verb, sql, parameters)
        self._settle()

    def drop(self, line: WireConnection) -> None:
        """Roll back the transaction of `line`, give the connection back, and continue statements that waited for it."""
        self.wire.drop(line)
        self._settle()

    def cancel(self, line: WireConnection) -> None:
        """Cancel the statement of `line`, which waits for a lock, and continue statements that waited behind it."""
        self.wire.cancel(line)
        self._settle()

    def _settle(self) -> None:
        """Continue every statement that waited for a lock and is answered now."""
        for databases in self._databases.values():
            for database in databases:
                for connection in database.connections:
                    connection.wake()
