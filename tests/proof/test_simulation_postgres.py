"""Simulated worlds on a real PostgreSQL: statements of several nodes interleave, a seed replays, mistakes are found."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import asyncpg
import pytest

from mainspring.backends.postgres import claim_sql
from mainspring.backends.postgres.database import Database, Session
from mainspring.backends.postgres.settings import read_url
from proof.simulated_loop import Process, SimulatedLoop
from proof.simulated_postgres import PostgresProvider
from proof.simulated_store import StoreFaults
from proof.simulated_wire import Wire
from proof.simulation import Outcome, run_world
from servers.for_tests import fresh_url

FIRST, SIZE, CHUNKS = 1, 5, 6

World = Callable[[int], Outcome]


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    wire = Wire(read_url(fresh_url()))
    yield wire
    wire.close()


@pytest.fixture
def world(wire: Wire) -> World:
    return partial(run_world, provider=partial(PostgresProvider, wire), small=True)


@pytest.mark.timeout(300)  # for a busy machine
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_worlds_on_postgres(world: World, chunk: int) -> None:
    """Thirty worlds have no violation."""
    for seed in range(FIRST + chunk * SIZE, FIRST + (chunk + 1) * SIZE):
        outcome = world(seed)
        assert outcome.ok, str(outcome)


@pytest.mark.chaos
@pytest.mark.timeout(7_200)
def test_many_worlds_on_postgres(world: World) -> None:
    """`make chaos` runs hundreds of worlds."""
    count = int(os.environ.get("MAINSPRING_PG_WORLDS", "4"))
    start = int(os.environ.get("MAINSPRING_FIRST_WORLD", "100000"))
    outcomes = [world(seed) for seed in range(start, start + count)]
    wrong = [str(outcome) for outcome in outcomes if not outcome.ok]
    fires, crashes = sum(one.report.fires for one in outcomes), sum(one.crashes for one in outcomes)
    print(f"{count} worlds on PostgreSQL: {fires} fires, {crashes} crashes, {len(wrong)} wrong")
    assert not wrong, "\n\n".join(wrong[:5])


@pytest.mark.timeout(300)
def test_a_seed_replays_exactly_on_postgres(world: World) -> None:
    seeds = (7, 18, 20)
    digests = [[world(seed).digest for seed in seeds] for _ in range(2)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == len(seeds)


@pytest.mark.timeout(300)
@pytest.mark.tampers
def test_the_simulation_finds_rows_that_stay_locked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistake: the planner keeps its transaction open while it decides, and after that."""
    single = Database.single_statement

    @contextlib.asynccontextmanager
    async def left_open(self: Database, verb: str) -> AsyncIterator[Session]:
        if verb != "due":
            async with single(self, verb) as session:
                yield session
            return
        connection = await self.connect()
        await connection.execute("BEGIN")
        yield Session(connection, self.qualify)

    monkeypatch.setattr(Database, "single_statement", left_open)
    assert any(not world(seed).ok for seed in range(1, 15))


@pytest.mark.timeout(300)
@pytest.mark.tampers
def test_the_simulation_finds_leases_that_are_too_short(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = "lease_until = $4::bigint"
    assert lease in claim_sql.START_RUNS
    monkeypatch.setattr(claim_sql, "START_RUNS", claim_sql.START_RUNS.replace(lease, f"{lease} - 20000"))
    assert any(world(seed).report.counts["I7"] for seed in range(1, 15))


# ── what the world does for the server ──────────────────────────────────────


def test_a_statement_that_waits_for_a_lock_continues_when_its_holder_dies(wire: Wire) -> None:
    """No virtual time passes while the server works, and the transaction of a dead process is rolled back at once."""
    loop = SimulatedLoop()
    provider = PostgresProvider(wire, loop, 1, 0.0)
    holder = Process(loop, "holder")
    holder.on_end = lambda: provider.close_connections("holder")
    place = provider.store._db.qualify
    lock = place("INSERT INTO §gate VALUES ($1, 1, 0, 0)")
    said: list[tuple[float, str]] = []

    async def hold() -> None:
        connection = await provider.connect("holder", StoreFaults())._db.connect()
        await connection.execute("BEGIN")
        await connection.execute(lock, "one")
        await asyncio.Event().wait()

    async def want() -> None:
        connection = await provider.connect("other", StoreFaults())._db.connect()
        await connection.execute(lock, "one")
        said.append((round(loop.time(), 1), "has it"))

    async def live() -> int:
        holder.start(hold())
        await asyncio.sleep(1)
        waits = loop.create_task(want())
        await asyncio.sleep(1)
        assert not said
        holder.kill()
        await waits
        return int(await (await provider.store._db.connect()).fetchval(place("SELECT count(*) FROM §gate")))

    try:
        assert loop.run_until_complete(live()) == 1
    finally:
        holder.dispose()
        provider.close()
        loop.close()
    assert said == [(2.0, "has it")]


def test_idle_transactions_and_long_lock_waits_are_ended_in_virtual_time(wire: Wire) -> None:
    loop = SimulatedLoop()
    provider = PostgresProvider(wire, loop, 1, 0.0)
    insert = provider.store._db.qualify("INSERT INTO §gate VALUES ($1, 1, 0, 0)")

    async def live() -> tuple[float, float]:
        idle = await provider.connect("idle", StoreFaults())._db.connect()
        await idle.execute("BEGIN")
        await idle.execute(insert, "one")
        other = await provider.connect("other", StoreFaults())._db.connect()
        await other.execute(insert, "one")
        freed = loop.time()
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await idle.execute("COMMIT")
        lively = await provider.connect("lively", StoreFaults())._db.connect()
        await lively.execute("BEGIN")
        await lively.execute(insert, "two")

        async def stay() -> None:
            while True:
                await asyncio.sleep(1)
                await lively.execute("SELECT 1")

        staying = loop.create_task(stay())
        with pytest.raises(asyncpg.LockNotAvailableError):
            await other.execute(insert, "two")
        staying.cancel()
        return freed, loop.time() - freed

    try:
        freed, waited = loop.run_until_complete(live())
    finally:
        provider.close()
        loop.close()
    assert 2.9 <= freed <= 3.1
    assert 4.9 <= waited <= 5.1
