"""The leader: one instance of an app keeps house, another goes on when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from mainspring import LeaderElected, LeaderLost, Mainspring
from mainspring.app.internals import host_of, runtime_of
from mainspring.backends.memory.store import MemoryStore
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Schedules
from mainspring.testing.time_travel import travel
from servers import for_tests_redis
from servers.for_tests import fresh_url
from tests.engine.locks.lock_support import Faulty, beside, row, second
from tests.engine.support import START, Make
from tests.stored_rows import stored

TTL = 30_000


def leads(app: Mainspring) -> bool:
    return host_of(app).runtime is not None and runtime_of(app).leader.leads


async def crash(app: Mainspring) -> None:
    """No line of its loops runs again, and nothing is given back."""
    assert host_of(app).runtime is not None
    for service in runtime_of(app)._loops:
        await service.stop()


async def test_the_first_instance_leads_and_says_so(ms: Mainspring) -> None:
    assert await ms.leader() is None
    await ms.close()
    async with travel(ms, START) as t:
        leader = await ms.leader()
        assert leader is not None
        assert (leader.instance, leader.term, leader.changes, leader.live) == (t.runtime.owner, 1, 0, True)
        assert leader.since == t.clock.now()
        await t.advance("2m")
        assert await ms.leader() == leader
        (event,) = await ms.events(types=[LeaderElected])
        assert isinstance(event, LeaderElected)
        assert (event.instance, event.term) == (t.runtime.owner, 1)
        owner = t.runtime.owner
    leader = await ms.leader()
    assert leader is not None
    assert (leader.instance, leader.live) == (owner, False)
    (lost,) = await ms.events(types=[LeaderLost])
    assert isinstance(lost, LeaderLost)
    assert (lost.instance, lost.term, lost.reason) == (owner, 1, "stopped")


async def test_one_of_three_leads_and_only_that_one_keeps_house(ms: Mainspring, make: Make) -> None:
    async with travel(ms, START) as t:
        others = [await second(make, ms) for _ in range(2)]
        async with beside(others[0], t), beside(others[1], t):
            kept = [_count_retention(app) for app in (ms, *others)]
            for _ in range(8):
                await t.advance("15s")
                for app in (ms, *others):
                    await runtime_of(app).keeper.run_once()  # type: ignore[union-attr]
                assert [leads(app) for app in (ms, *others)] == [True, False, False]
            assert kept[0]
            assert kept[1:] == [[], []]
            assert {(await app.leader()).instance for app in (ms, *others)} == {t.runtime.owner}  # type: ignore[union-attr]


async def test_a_leader_that_stops_hands_over_at_the_next_look(ms: Mainspring, make: Make) -> None:
    async with travel(ms, START) as t:
        other = await second(make, ms)
        async with beside(other, t) as first:
            await t.runtime.leader.leave()
            await t.runtime.leader.stop()
            assert not leads(ms)
            await t.advance("10s")
            assert leads(first)
            leader = await ms.leader()
            assert leader is not None
            assert (leader.term, leader.changes, leader.since > 0) == (2, 1, True)


async def test_duties_resume_within_two_ttl_after_a_crash_and_never_before_one(ms: Mainspring, make: Make) -> None:
    """From any moment of the renewal's cycle."""
    async with travel(ms, START) as t, AsyncExitStack() as stack:
        leader = ms
        for number in range(6):
            heir = await stack.enter_async_context(beside(await second(make, ms), t))
            assert host_of(heir).runtime is not None
            kept = _count_retention(heir)
            await t.advance(f"{number * 1_733}ms")
            before = await row(ms, "leader:")
            await crash(leader)
            crashed = t.clock.boot()
            while not kept:
                assert t.clock.boot() - crashed <= 2 * TTL
                assert not leads(heir) or t.clock.boot() >= before.expires_at
                await t.advance("250ms")
            assert not leads(leader)
            after = await row(ms, "leader:")
            assert (after.owner, after.epoch) == (runtime_of(heir).owner, before.epoch + 1)
            leader = heir


async def test_a_leader_that_cannot_reach_the_store_steps_down_before_the_next_one_begins() -> None:
    store = Faulty(MemoryStore())
    ms, other = Mainspring(store=store), Mainspring(store=store.inner)  # type: ignore[arg-type]
    async with travel(ms, START) as t, beside(other, t):
        assert leads(ms)
        store.before = {"lease"}
        began = t.clock.boot()
        while leads(ms):
            assert not leads(other)
            await t.advance("100ms")
        assert 0.5 * TTL <= t.clock.boot() - began <= 0.9 * TTL + 100
        while not leads(other):
            assert t.clock.boot() - began <= 2 * TTL
            await t.advance("100ms")
        await t.advance("10s")
        store.before = set()
        await t.advance("5m")
        assert (leads(ms), leads(other)) == (False, True)
        lost = [event for event in await ms.events(types=[LeaderLost]) if isinstance(event, LeaderLost)]
        assert [(event.term, event.reason) for event in lost] == [(1, "unreachable")]
        assert len(await ms.events(types=[LeaderElected])) == 2


async def test_a_leader_that_was_asleep_does_nothing_before_it_has_asked(ms: Mainspring, make: Make) -> None:
    async with travel(ms, START) as t:
        other = await second(make, ms)
        async with beside(other, t):
            kept = _count_retention(ms)
            t.clock.move_to(t.clock.monotonic() + 10 * TTL / 1000)  # all instances slept: a laptop's lid
            assert not leads(ms)
            await t.runtime.keeper.run_once()
            assert kept == []
            await t.advance("1m")
            assert [leads(ms), leads(other)].count(True) == 1


async def test_a_lost_answer_to_an_election_is_no_lost_term() -> None:
    store = Faulty(MemoryStore())
    ms = Mainspring(store=store)  # type: ignore[arg-type]
    async with travel(ms, START) as t:
        await t.runtime.leader.leave()
        store.after = {"lease"}
        await t.advance("10s")
        store.after = set()
        await t.advance("11s")
        assert leads(ms)
        assert (await row(ms, "leader:")).epoch == 2


async def test_each_app_and_each_namespace_has_its_own(ms: Mainspring, make: Make) -> None:
    """One app's keeper pauses only what its own code declares no more: each needs one that does it."""
    async with travel(ms, START) as t:
        apps = [
            await second(make, ms, name="shop"),
            await second(make, ms, name="shop", namespace="blue"),
            await second(make, ms, name="a:b", namespace="c"),
            await second(make, ms, name="b", namespace="c:a"),
        ]
        async with beside(apps[0], t), beside(apps[1], t), beside(apps[2], t), beside(apps[3], t):
            await t.advance("1m")
            assert all(leads(app) for app in (ms, *apps))


async def test_an_apps_forgotten_schedule_is_paused_although_another_app_came_first() -> None:
    def make(**options: Any) -> Mainspring:
        return Mainspring("memory://", **options)

    ms = make(lease_ttl="5m")
    async with travel(ms, START) as t:
        shop = await second(make, ms, name="shop", lease_ttl="5m")

        @shop.every("1h", name="old")
        async def old() -> None: ...

        async with beside(shop, t):
            await t.advance("1m")
        shop = await second(make, ms, name="shop", lease_ttl="5m")
        async with beside(shop, t):
            await t.advance("2h")
            row: Schedule = await stored(shop, shop.get("old"))
            assert (row.state, row.reason) == ("paused", "not_declared")


async def test_starting_and_stopping_again_and_again(ms: Mainspring) -> None:
    for number in range(1, 11):
        async with travel(ms, START) as t:
            assert leads(ms)
            assert t.runtime.leader.epoch == number
        leader = await ms.leader()
        assert leader is not None
        assert (leader.live, leader.changes) == (False, number - 1)
        await ms.close()


async def test_subscribers_get_the_events_of_the_leader() -> None:
    heard: list[str] = []
    ms = Mainspring("memory://")
    ms.on_event((LeaderElected, LeaderLost), lambda event: heard.append(type(event).__name__))
    async with travel(ms, START) as t:
        await t.runtime.leader.leave()
        await t.advance("1m")
    assert heard == ["LeaderElected", "LeaderLost", "LeaderElected", "LeaderLost"]


async def test_an_exporter_can_read_the_leader(ms: Mainspring) -> None:
    assert ms.metrics() == {}
    async with travel(ms, START) as t:
        first = ms.metrics()
        assert (first["leader"], first["leader_term"], first["leader_terms_won_total"]) == (1, 1, 1)
        await t.runtime.leader.leave()
        away = ms.metrics()
        assert (away["leader"], away["leader_term"], away["leader_terms_won_total"]) == (0, 0, 1)
        await t.advance("1m")
        again = ms.metrics()
        assert (again["leader"], again["leader_term"], again["leader_terms_won_total"]) == (1, 2, 2)
        assert (again["runs_held"], again["slots"], again["store_failures"]) == (0, ms.settings.concurrency, 0)
    assert ms.metrics() == {}


@pytest.mark.tampers
@pytest.mark.parametrize("ahead", [True, False])
async def test_a_long_duty_is_left_when_the_term_ends(ahead: bool) -> None:
    """Pages of a long look are only read while the term is trusted."""
    ms = Mainspring("memory://")
    async with travel(ms, START) as t:

        @ms.task
        async def work() -> None: ...

        await ms.schedule_many(work, ({"name": f"s{n}", "every": "1h"} for n in range(1_200)))
        store = cast("MemoryStore", t.runtime.store)
        stuck = {key: replace(schedule, next_at=None) for key, schedule in store._schedules.items()}
        store._schedules.update(stuck)
        looked = 0
        find = t.runtime.store.find

        async def counting(query: Any) -> Any:
            nonlocal looked
            looked += isinstance(query, Schedules)
            if not ahead:
                t.clock.move_to(t.clock.monotonic() + TTL / 1000)
            return await find(query)

        t.runtime.store.find = counting  # type: ignore[method-assign]
        await t.runtime.keeper.repair()
        assert looked == (3 if ahead else 1)
        t.runtime.store.find = find  # type: ignore[method-assign]


def _count_retention(app: Mainspring) -> list[int]:
    """Notes each time this instance's keeper does its duty."""
    runtime = host_of(app).runtime
    assert runtime is not None
    keeper, done = runtime.keeper, []
    retain: Callable[[], Awaitable[bool]] = keeper.retain

    async def counted() -> bool:
        done.append(1)
        return await retain()

    keeper.retain = counted  # type: ignore[method-assign]
    return done


async def test_an_instance_that_only_works_does_not_stand_for_election(plain_ms: Mainspring) -> None:
    @plain_ms.task
    async def work() -> None: ...

    for _ in range(3):
        await work.enqueue()
        await plain_ms.run_async(until_idle=True, signals=False, role="worker")
        assert await plain_ms.leader() is None
    await work.enqueue()
    await plain_ms.run_async(until_idle=True, signals=False)
    assert await plain_ms.leader() is not None


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that two engines share."""
    if request.param == "valkey":
        return for_tests_redis.fresh_url()
    return fresh_url() if request.param == "postgres" else f"sqlite:///{tmp_path}/x.db"


async def test_on_a_real_store_a_leader_that_falls_silent_is_followed_by_another(shared: str) -> None:
    """Both engines on threads of their own, in real time."""
    silent, heir = (Mainspring(shared, lease_ttl="1s", poll_interval="100ms") for _ in range(2))
    async with silent.running():
        await _until(lambda: leads(silent))
        await host_of(silent).call(lambda runtime: runtime.leader.stop())  # no line of its leader runs again
        async with heir.running():
            await _until(lambda: leads(heir))
            assert not leads(silent)
            leader = await heir.leader()
            assert leader is not None
            assert (leader.instance, leader.term, leader.live) == (runtime_of(heir).owner, 2, True)  # type: ignore[union-attr]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is another thread's
            await asyncio.sleep(0.005)
