"""A server that goes in the middle of a write: what was done is known by its ids, never done twice, never guessed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from mainspring.model.change import Change
from mainspring.model.errors import OutcomeUnknown, StoreUnavailable
from mainspring.model.events import InstanceJoined, RunScheduled, SchedulePaused
from mainspring.model.run import State
from mainspring.ports.store import Events, Offer, Runs, Schedules, Wish
from mainspring.stores.redis import RedisStore
from mainspring.stores.redis import store as store_module
from mainspring.testing.factories import (
    T0,
    Ids,
    create_schedule_change,
    enqueue_change,
    finish_change,
    make_run,
    make_schedule,
    plan_change,
    schedule_change,
)
from mainspring.verify import verify
from servers.for_tests_redis import fresh_url
from servers.proxy import Proxy

OFFER = Offer("w", ("default/default",), ("t",), 30_000)
Cruelty = Callable[[Proxy, Callable[[bytes], bool]], None]

#: The proxy is gone when a test is over: `events verify` goes past it, in the fixture.
pytestmark = pytest.mark.tampers


def is_write(data: bytes) -> bool:
    return b"EVALSHA" in data and len(data) > 300


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    async with Proxy(url) as proxy:
        yield proxy


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
def ids() -> Ids:
    return Ids()


@pytest.fixture
async def store(url: str, proxy: Proxy) -> AsyncIterator[RedisStore]:
    store = RedisStore(f"{proxy.url}&pool=1")
    await store.open()
    # Every script is known to the server, so that one call is one request.
    await store.apply([Change(id="warm"), Change(id="up")], wish=Wish(OFFER, 1))
    await store.apply([enqueue_change(Ids(), make_run(Ids(), id="first"))])
    (claim,) = (await store.claim(OFFER, 1)).claims
    await store.apply([finish_change(Ids(), claim.run)])
    yield store
    proxy.refusing = False
    await store.close()
    direct = RedisStore(url)
    await direct.open()
    report = await verify(direct)
    await direct.close()
    assert report.ok, report.differences[:5]


async def names(store: RedisStore, **query: Any) -> list[str]:
    return [type(event).__name__ for event in await store.find(Events(**query)) if event.run_id != "first"]


@pytest.mark.parametrize("lose", [Proxy.lose_answer, Proxy.lose_request])
@pytest.mark.parametrize("unique", [True, False], ids=["long way", "short way"])
async def test_births_whose_answer_or_request_is_lost_happen_once(
    proxy: Proxy, store: RedisStore, ids: Ids, lose: Cruelty, unique: bool
) -> None:
    changes = [
        enqueue_change(ids, make_run(ids, unique_key=f"k{i}" if unique else None), body=f'"{i}"') for i in range(3)
    ]
    lose(proxy, is_write)
    results = (await store.apply(changes)).results
    assert proxy.lost == 1
    assert {result.status for result in results} == {"repeated" if lose is Proxy.lose_answer else "accepted"}
    assert await names(store) == ["RunScheduled"] * 3
    assert len(await store.find(Runs())) == 4


async def test_whatever_a_change_is_guarded_by_it_is_found_by_its_id(proxy: Proxy, store: RedisStore, ids: Ids) -> None:
    await store.apply([create_schedule_change(ids, make_schedule(ids, name=name)) for name in ("a", "b")])
    one, two = await store.find(Schedules())
    note = Change(id=ids.change(), events=(InstanceJoined(instance="i"),))
    loose = make_run(ids)
    bulk = Change(id=ids.change(), runs=(loose,), events=enqueue_change(ids, loose).events)
    paused = SchedulePaused(schedule_id=one.id, reason="user")
    pause = schedule_change(ids, one, paused, state="paused", reason="user", next_at=None)
    plan = plan_change(ids, two, [T0 + 1_000], next_at=T0 + 2_000)
    plan = replace(plan, events=(RunScheduled(**{**asdict(plan.events[0]), "next_at": T0 + 2_000}),))
    proxy.lose_answer(is_write)
    results = (await store.apply([pause, note, bulk, plan])).results
    assert proxy.lost == 1
    assert [result.status for result in results] == ["repeated"] * 4
    expected = ["InstanceJoined", "RunScheduled", "RunScheduled", "ScheduleCreated", "ScheduleCreated"]
    assert sorted(await names(store)) == [*expected, "SchedulePaused"]


async def test_a_note_is_known_by_its_id_for_an_hour(store: RedisStore, ids: Ids) -> None:
    note = Change(id=ids.change(), events=(InstanceJoined(instance="i"),))
    hour = 3_600_000
    said = [(await store.apply([note], now=at)).results[0].status for at in (T0, T0 + 1, T0 + hour - 1)]
    assert said == ["accepted", "repeated", "repeated"]
    await store.apply([Change(id=ids.change())], now=T0 + hour + 1)
    assert [result.status for result in (await store.apply([note], now=T0 + hour + 2)).results] == ["accepted"]


async def test_outcomes_whose_answer_is_lost_are_kept_and_the_claim_beside_them_is_a_stray(
    proxy: Proxy, store: RedisStore, ids: Ids
) -> None:
    await store.apply([enqueue_change(ids, make_run(ids)) for _ in range(2)])
    (first,) = (await store.claim(OFFER, 1)).claims
    proxy.lose_answer(is_write)
    applied = await store.apply([finish_change(ids, first.run)], wish=Wish(OFFER, 5))
    assert proxy.lost == 1
    assert applied.results[0].status == "repeated"
    assert (await store.find(Runs(id=first.run.id)))[0].state is State.SUCCEEDED
    claimed = [] if applied.claimed is None else applied.claimed.claims
    strays = (await store.renew("w", [(claim.run.id, claim.run.epoch) for claim in claimed], 30_000)).strays
    assert len(strays) + len(claimed) == 1
    assert await names(store, run_id=first.run.id) == ["RunScheduled", "RunStarted", "RunSucceeded"]


async def test_when_nobody_can_be_asked_the_caller_is_told_that_nobody_knows(
    proxy: Proxy, store: RedisStore, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_RESEND_SECONDS", 0.2)
    change = enqueue_change(ids, make_run(ids))
    proxy.lose_answer(lambda data: is_write(data) and not setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown, match="whether it was is not known"):
        await store.apply([change])
    proxy.refusing = False
    assert [result.status for result in (await store.apply([change])).results] == ["repeated"]


async def test_before_anything_is_sent_the_error_says_that_the_store_is_away(
    proxy: Proxy, store: RedisStore, ids: Ids
) -> None:
    proxy.refusing = True
    proxy.cut()
    with pytest.raises(StoreUnavailable):
        await store.find(Runs())
    with pytest.raises(StoreUnavailable) as away:
        await store.apply([enqueue_change(ids, make_run(ids))])
    assert not isinstance(away.value, OutcomeUnknown)
    proxy.refusing = False
    assert [run.id for run in await store.find(Runs())] == ["first"]


async def test_whoever_is_cancelled_is_cancelled_whatever_comes_at_that_moment(store: RedisStore) -> None:
    """A driver that swallows a cancellation leaves a loop that nobody can stop any more."""
    cut = 0
    for steps in range(40):
        asking = asyncio.create_task(store.find(Runs()))
        for _ in range(steps):
            await asyncio.sleep(0)
        if asking.cancel():
            cut += 1
            with pytest.raises(asyncio.CancelledError):
                await asking
    assert cut >= 3
    assert [run.id for run in await store.find(Runs())] == ["first"]
