"""A connection to Valkey or Redis goes in the middle of a call: found by its ids, never guessed, nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from mainspring.model.change import Change
from mainspring.model.errors import OutcomeUnknown, StoreUnavailable
from mainspring.model.events import InstanceJoined, SchedulePaused
from mainspring.model.run import State
from mainspring.ports.store import Events, Offer, Runs, Schedules, Wish
from mainspring.stores.redis import RedisStore
from mainspring.stores.redis import store as store_module
from mainspring.testing.factories import (
    Ids,
    create_schedule_change,
    enqueue_change,
    finish_change,
    make_run,
    make_schedule,
    schedule_change,
)
from mainspring.verify import verify
from servers.for_tests_redis import fresh_url
from servers.proxy import Proxy

OFFER = Offer("w", ("default/default",), ("t",), 30_000)
#: The proxy is gone when a test is over: `events verify` goes past it, in the fixture.
pytestmark = pytest.mark.tampers
Cruelty = Callable[[Proxy, Callable[[bytes], bool]], None]


def is_script(data: bytes) -> bool:
    return b"EVAL" in data


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    async with Proxy(url) as proxy:
        yield proxy


@pytest.fixture
async def store(url: str, proxy: Proxy) -> AsyncIterator[RedisStore]:
    store = RedisStore(proxy.url + "&pool=1")
    await store.open()
    yield store
    await store.close()
    direct = RedisStore(url)
    await direct.open()
    report = await verify(direct)
    await direct.close()
    assert report.ok, report.differences


@pytest.fixture
def ids() -> Ids:
    return Ids()


@pytest.mark.parametrize("lose", [Proxy.lose_answer, Proxy.lose_request])
async def test_births_whose_answer_or_request_is_lost_happen_once_on_redis(
    proxy: Proxy, store: RedisStore, ids: Ids, lose: Cruelty
) -> None:
    changes = [enqueue_change(ids, make_run(ids, unique_key=f"k{i}"), body=f'"{i}"') for i in range(3)]
    await store.apply(changes[:1])  # the server knows the script from now on
    changes = changes[1:]
    lose(proxy, is_script)
    results = (await store.apply(changes)).results
    assert proxy.lost == 1
    assert {result.status for result in results} == {"repeated" if lose is Proxy.lose_answer else "accepted"}
    assert len(await store.find(Runs())) == len(await store.find(Events())) == 3


async def test_a_call_whose_answer_is_lost_is_found_by_its_ids(proxy: Proxy, store: RedisStore, ids: Ids) -> None:
    await store.apply([create_schedule_change(ids, make_schedule(ids))])
    (row,) = await store.find(Schedules())
    note = Change(id=ids.change(), events=(InstanceJoined(instance="i"),))
    loose = make_run(ids)
    bulk = Change(id=ids.change(), runs=(loose,), events=enqueue_change(ids, loose).events)
    paused = SchedulePaused(schedule_id=row.id, reason="user")
    pause = schedule_change(ids, row, paused, state="paused", reason="user", next_at=None)
    proxy.lose_answer(is_script)
    results = (await store.apply([pause, note, bulk])).results
    assert proxy.lost == 1
    assert [result.status for result in results] == ["repeated"] * 3
    names = [type(event).__name__ for event in await store.find(Events())]
    assert sorted(names) == ["InstanceJoined", "RunScheduled", "ScheduleCreated", "SchedulePaused"]


async def test_outcomes_whose_answer_is_lost_are_kept_and_the_claim_is_a_stray_on_redis(
    proxy: Proxy, store: RedisStore, ids: Ids
) -> None:
    await store.apply([enqueue_change(ids, make_run(ids)) for _ in range(3)])
    (earlier,) = (await store.claim(OFFER, 1)).claims
    claimed = (await store.apply([finish_change(ids, earlier.run)], wish=Wish(OFFER, 1))).claimed
    assert claimed is not None
    (first,) = claimed.claims
    proxy.lose_answer(is_script)
    applied = await store.apply([finish_change(ids, first.run)], wish=Wish(OFFER, 5))
    assert proxy.lost == 1
    assert applied.results[0].status == "repeated"
    assert (await store.find(Runs(id=first.run.id)))[0].state is State.SUCCEEDED
    later = [] if applied.claimed is None else applied.claimed.claims
    strays = (await store.renew("w", [(claim.run.id, claim.run.epoch) for claim in later], 30_000)).strays
    assert len(strays) + len(later) == 1
    names = [type(event).__name__ for event in await store.find(Events(run_id=first.run.id))]
    assert names == ["RunScheduled", "RunStarted", "RunSucceeded"]


async def test_when_nobody_can_be_asked_the_caller_is_told_so_on_redis(
    proxy: Proxy, store: RedisStore, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_RESEND_SECONDS", 0.2)
    change = enqueue_change(ids, make_run(ids))
    proxy.lose_answer(lambda data: is_script(data) and not setattr(proxy, "refusing", True))
    with pytest.raises(OutcomeUnknown, match="whether it was is not known"):
        await store.apply([change])
    proxy.refusing = False
    assert [result.status for result in (await store.apply([change])).results] == ["repeated"]


async def test_before_anything_is_sent_the_store_is_away_on_redis(proxy: Proxy, store: RedisStore, ids: Ids) -> None:
    proxy.refusing = True
    proxy.cut()
    with pytest.raises(StoreUnavailable) as away:
        await store.apply([enqueue_change(ids, make_run(ids))])
    assert not isinstance(away.value, OutcomeUnknown)
    proxy.refusing = False
    assert await store.find(Runs()) == []


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
    assert await store.find(Runs()) == []
