"""Two instances on one Valkey or Redis: the server's clock decides, and refused or failed calls write nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from mainspring.backends.redis import RedisStore
from mainspring.model.change import Body, Change
from mainspring.model.errors import StoreError
from mainspring.model.gate import Gate
from mainspring.model.run import State
from mainspring.model.schedule import ScheduleSpec
from mainspring.model.trigger import EverySpec
from mainspring.ports.clock import SystemClock
from mainspring.ports.store import Agenda, Bodies, Offer, Runs
from mainspring.testing.contract.factories import Ids, enqueue_change, finish_change, make_run
from proof.scenario import Scenario
from servers.for_tests_redis import fresh_url, server_url

HOUR = 3_600_000


class Ahead(SystemClock):
    """The clock of a machine that is an hour ahead."""

    def now(self) -> int:
        return super().now() + HOUR


class Two:
    """The stores of two instances on one prefix, one of a third instance with a wrong clock, and a plain client."""

    def __init__(self, base: str) -> None:
        url = fresh_url(base)
        self.one, self.two, self.ahead = RedisStore(url), RedisStore(url), RedisStore(url, Ahead())
        self.raw = redis.Redis.from_url(base)
        self.scenario = Scenario(self.one)

    @property
    def stores(self) -> tuple[RedisStore, ...]:
        return self.one, self.two, self.ahead

    def offer(self, owner: str) -> Offer:
        return Offer(owner, (self.scenario.lane,), (self.scenario.task,), 30_000)

    def content(self) -> dict[bytes, Any]:
        """Return every key under the prefix with its value."""
        read: dict[bytes, Callable[[bytes], Any]] = {
            b"hash": self.raw.hgetall,
            b"zset": lambda key: self.raw.zrange(key, 0, -1, withscores=True),
            b"set": self.raw.smembers,
            b"list": lambda key: self.raw.lrange(key, 0, -1),
            b"string": self.raw.get,
        }
        keys = self.raw.scan_iter(f"{{{self.one.settings.prefix}}}*")
        return {key: read[self.raw.type(key)](key) for key in keys}

    async def now(self) -> int:
        """Return the server's time."""
        return (await self.one.due(Agenda.TOUCHED, 0)).now


@pytest.fixture(params=["valkey", "redis"])
async def two(request: pytest.FixtureRequest) -> AsyncIterator[Two]:
    pair = Two(server_url(request.param))
    for store in pair.stores:
        await store.open()
    yield pair
    pair.raw.close()
    for store in pair.stores:
        await store.close()


async def test_an_instance_whose_clock_is_ahead_takes_no_held_lease_on_redis(two: Two) -> None:
    await two.scenario.enqueue(await two.now())
    (claim,) = (await two.one.claim(two.offer("me"), 10)).claims
    assert (await two.ahead.due(Agenda.EXPIRED, 10)).runs == ()
    assert (await two.one.renew("me", [(claim.run.id, claim.run.epoch)], 30_000)).lost == frozenset()
    assert await two.one.lease("keeper", "me", 30_000) is not None
    assert await two.ahead.lease("keeper", "other", 30_000) is None
    taken = await two.ahead.lease("another", "other", 30_000)
    assert taken is not None
    assert taken.expires_at - await two.now() <= 30_000


async def test_a_planner_that_stops_delays_its_schedules_by_the_hold_on_redis(two: Two) -> None:
    now = await two.now()
    schedule_id = await two.scenario.create(ScheduleSpec(EverySpec(1_000), "t"), now - 5_000)
    (first,) = (await two.one.due(Agenda.SCHEDULES, 10, hold=1_000, now=now)).schedules  # then this instance stops
    assert first.schedule.id == schedule_id
    assert (await two.two.due(Agenda.SCHEDULES, 10, now=now + 900)).schedules == ()
    again = (await two.two.due(Agenda.SCHEDULES, 10, now=now + 1_001)).schedules
    assert [due.schedule.id for due in again] == [schedule_id]
    await Scenario(two.two).pause(schedule_id, now + 1_002)


async def test_a_success_under_a_lease_that_was_lost_is_refused(two: Two) -> None:
    """Refused by the fast path, and by the long script in a batch with other changes."""
    ids = Ids()
    offers = [Offer(owner, ("default/default",), ("t",), 60_000) for owner in ("first", "second")]
    await two.one.apply([enqueue_change(ids, make_run(ids)) for _ in range(2)])
    now = await two.now()
    stale = [claim.run for claim in (await two.one.claim(offers[0], 2, now=now)).claims]
    await two.one.apply([finish_change(ids, run, State.WAITING) for run in stale], now=now + 1)
    again = [claim.run for claim in (await two.two.claim(offers[1], 2, now=now + 2)).claims]
    assert [(run.id, run.epoch) for run in again] == [(run.id, 2) for run in stale]
    before = two.content()
    first, second = stale
    alone = (await two.one.apply([finish_change(ids, first)], now=now + 3)).results
    beside = (await two.one.apply([finish_change(ids, second), enqueue_change(ids, first)], now=now + 3)).results
    assert [result.status for result in (*alone, *beside)] == ["refused"] * 3
    assert two.content() == before
    assert all(result.ok for result in (await two.two.apply([finish_change(ids, run) for run in again])).results)


async def test_a_refused_change_has_written_nothing_on_redis(two: Two) -> None:
    ids = Ids()
    run = make_run(ids)
    await two.one.apply([enqueue_change(ids, run)])
    before = two.content()
    late = make_run(ids)
    stale = finish_change(ids, run)  # the run was never claimed, so this lease does not exist
    burdened = Change(
        id=stale.id,
        guard=stale.guard,
        run=stale.run,
        runs=(late,),
        events=(*stale.events, *enqueue_change(ids, late).events),
        bodies=(Body("b" * 64, '"never"'),),
    )
    (result,) = (await two.two.apply([burdened])).results
    assert result.status == "refused"
    assert two.content() == before
    assert await two.one.find(Bodies(ids=("b" * 64,))) == []
    assert await two.one.find(Runs(id=late.id)) == []


async def test_a_script_that_fails_has_written_nothing(two: Two) -> None:
    """The script fails at a damaged gate after it has decided on the run: neither row nor event is written."""
    ids = Ids()
    await two.one.apply([enqueue_change(ids, make_run(ids, gates=("g",)), gates=(Gate("g", 1),))])
    (claim,) = (await two.one.claim(Offer("w", ("default/default",), ("t",), 60_000), 1)).claims
    key = f"{{{two.one.settings.prefix}}}:gate"
    whole = two.raw.hget(key, "g")
    assert isinstance(whole, bytes)
    two.raw.hset(key, "g", b"\xc1")
    before = two.content()
    change = finish_change(ids, claim.run)
    with pytest.raises(StoreError):
        await two.one.apply([change])
    assert two.content() == before
    two.raw.hset(key, "g", whole)
    (result,) = (await two.one.apply([change])).results
    assert result.status == "accepted"
