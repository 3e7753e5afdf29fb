"""Races of two instances on one PostgreSQL: a row lock of a third session stops both at the critical moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from mainspring.backends.postgres import PostgresStore
from mainspring.model.gate import Gate
from mainspring.model.run import State
from mainspring.model.schedule import ScheduleSpec
from mainspring.model.trigger import EverySpec
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Agenda, Gates, Offer
from mainspring.rules.run_commands import Complete
from proof.scenario import Scenario
from servers.for_tests import fresh_url

HOUR = 3_600_000


class Ahead(SystemClock):
    """A machine whose clock is an hour ahead."""

    def now(self) -> int:
        return super().now() + HOUR


class Two:
    """Two instances' stores on one schema, and a connection of a third that can keep a row locked."""

    def __init__(self) -> None:
        url = fresh_url(listen=0)
        self.one, self.two, self.ahead = PostgresStore(url), PostgresStore(url), PostgresStore(url, Ahead())
        self.raw: Any = None
        self.scenario = Scenario(self.one)

    @property
    def stores(self) -> tuple[PostgresStore, ...]:
        return self.one, self.two, self.ahead

    def sql(self, text: str) -> str:
        return text.replace("§", f'"{self.one.settings.schema}".')

    def offer(self, owner: str) -> Offer:
        return Offer(owner, (self.scenario.lane,), (self.scenario.task,), 30_000)

    async def now(self) -> int:
        """Return the server's instant."""
        return (await self.one.due(Agenda.TOUCHED, 0)).now

    async def waiting_for_a_lock(self, count: int) -> None:
        """Return when `count` sessions wait for the lock that the third holds."""
        asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        watcher = await asyncpg.connect(self.one.settings.dsn)
        try:
            async with asyncio.timeout(20):
                while await watcher.fetchval(asked) < count:  # noqa: ASYNC110 - the server sends no event
                    await asyncio.sleep(0.01)
        finally:
            await watcher.close()


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    pair = Two()
    for store in pair.stores:
        await store.open()
    pair.raw = await asyncpg.connect(pair.one.settings.dsn)
    yield pair
    await pair.raw.close()
    for store in pair.stores:
        await store.close()


async def test_an_instance_whose_clock_is_ahead_takes_no_held_lease(two: Two) -> None:
    await two.scenario.enqueue(await two.now())
    (claim,) = (await two.one.claim(two.offer("me"), 10)).claims
    assert (await two.ahead.due(Agenda.EXPIRED, 10)).runs == ()
    assert (await two.one.renew("me", [(claim.run.id, claim.run.epoch)], 30_000)).lost == frozenset()
    assert await two.one.lease("keeper", "me", 30_000) is not None
    assert await two.ahead.lease("keeper", "other", 30_000) is None
    taken = await two.ahead.lease("another", "other", 30_000)
    assert taken is not None
    assert taken.expires_at - await two.now() <= 30_000


async def test_a_lease_taken_by_an_instance_ahead_ends_by_the_servers_clock(two: Two) -> None:
    await two.scenario.enqueue(await two.now())
    (claim,) = (await two.ahead.claim(two.offer("ahead"), 10)).claims
    assert (claim.run.lease_until or 0) - await two.now() <= 30_000
    (found,) = (await two.one.due(Agenda.EXPIRED, 10, now=await two.now() + 30_001)).runs
    assert found.id == claim.run.id


async def test_a_planner_that_stops_between_reading_and_writing_delays_its_schedules_by_the_hold(two: Two) -> None:
    now = await two.now()
    schedule_id = await two.scenario.create(ScheduleSpec(EverySpec(1_000), "t"), now - 5_000)
    (first,) = (await two.one.due(Agenda.SCHEDULES, 10, hold=1_000, now=now)).schedules  # and it stops here
    assert first.schedule.id == schedule_id
    assert (await two.two.due(Agenda.SCHEDULES, 10, now=now + 900)).schedules == ()
    again = (await two.two.due(Agenda.SCHEDULES, 10, now=now + 1_001)).schedules
    assert [due.schedule.id for due in again] == [schedule_id]
    async with asyncio.timeout(3):  # and it blocks no other writer
        await Scenario(two.two).pause(schedule_id, now + 1_002)


async def test_a_gate_with_room_for_one_admits_one_of_two_concurrent_claims(two: Two) -> None:
    now = await two.now()
    gate = Gate("g", 1)
    ours = [await two.scenario.enqueue(now, gates=(gate,)) for _ in range(2)]
    async with two.raw.transaction():
        await two.raw.execute(two.sql("SELECT * FROM §gate FOR UPDATE"))
        asking = [
            asyncio.ensure_future(store.claim(two.offer(f"w{number}"), 1, ids=(ours[number],)))
            for number, store in enumerate((two.one, two.two))
        ]
        await two.waiting_for_a_lock(2)
    claimed = [claim.run.id for answer in await asyncio.gather(*asking) for claim in answer.claims]
    (row,) = await two.one.find(Gates())
    assert (len(claimed), row.held) == (1, 1)


async def test_a_run_parked_while_its_gate_is_left_is_unparked(two: Two) -> None:
    """The claimer parks the run at a full gate, after the statement that leaves the gate took its snapshot."""
    now = await two.now()
    gate = Gate("g", 1)
    await two.scenario.enqueue(now, gates=(gate,))
    (holder,) = await two.scenario.claim(now)
    parked = await two.scenario.enqueue(now, gates=(gate,))
    async with two.raw.transaction():
        await two.raw.execute(two.sql("SELECT * FROM §gate FOR UPDATE"))
        leaving = asyncio.ensure_future(two.scenario.finish(holder, Complete(now, 1), now))
        await two.waiting_for_a_lock(1)
        await two.raw.execute(two.sql("UPDATE §run SET parked_on = 'g' WHERE id = $1"), parked)
    await leaving
    await two.two.due(Agenda.GATES, 10)
    claims = (await two.two.claim(two.offer("w"), 1)).claims
    assert [(claim.run.id, claim.run.state) for claim in claims] == [(parked, State.RUNNING)]
