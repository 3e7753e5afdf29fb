"""A server that goes away during a write: a change sent again is recognised by its id and stored exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from mainspring.backends.redis import RedisStore
from mainspring.ledger.verify import verify
from mainspring.model.change import Change
from mainspring.model.events import InstanceJoined, RunScheduled, SchedulePaused
from mainspring.ports.store import ClaimRequest, Events, Runs, Schedules
from mainspring.testing.contract.factories import (
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
from servers.for_tests_redis import fresh_url
from servers.proxy import Proxy
from tests.backends.bulks import bulk_change
from tests.system.lost_answers import OFFER, LostAnswers

Loss = Callable[[Proxy, Callable[[bytes], bool]], None]

#: The proxy is closed when a test ends. The fixture runs `events verify` without it.
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
    # Load every script into the server, so that each later call is one request.
    await store.apply([Change(id="warm"), Change(id="up")], claim_request=ClaimRequest(OFFER, 1))
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
@pytest.mark.parametrize("unique", [True, False], ids=["long script", "fast path"])
async def test_inserts_whose_answer_or_request_is_lost_happen_once(
    proxy: Proxy, store: RedisStore, ids: Ids, lose: Loss, unique: bool
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


async def test_a_resent_change_is_recognised_by_its_id_whatever_its_guard(
    proxy: Proxy, store: RedisStore, ids: Ids
) -> None:
    await store.apply([create_schedule_change(ids, make_schedule(ids, name=name)) for name in ("a", "b")])
    one, two = await store.find(Schedules())
    note = Change(id=ids.change(), events=(InstanceJoined(instance="i"),))
    loose = make_run(ids)
    bulk = bulk_change(ids, (loose,))
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


async def test_a_note_is_recognised_by_its_id_for_an_hour(store: RedisStore, ids: Ids) -> None:
    note = Change(id=ids.change(), events=(InstanceJoined(instance="i"),))
    hour = 3_600_000
    statuses = [(await store.apply([note], now=at)).results[0].status for at in (T0, T0 + 1, T0 + hour - 1)]
    assert statuses == ["accepted", "repeated", "repeated"]
    await store.apply([Change(id=ids.change())], now=T0 + hour + 1)
    assert [result.status for result in (await store.apply([note], now=T0 + hour + 2)).results] == ["accepted"]


class TestLostAnswers(LostAnswers):
    is_write = staticmethod(is_write)


async def test_a_cancellation_is_not_swallowed_by_an_answer_at_the_same_moment(store: RedisStore) -> None:
    """A driver that swallows a cancellation leaves a task that can never be stopped."""
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
