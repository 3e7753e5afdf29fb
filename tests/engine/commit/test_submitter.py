"""Changes cross from callers' loops and threads to the engine's, and each caller hears its own answer."""

from __future__ import annotations

import asyncio
import threading

import pytest
from test_batcher import Recording, enqueue, make

from mainspring.engine.commit import batcher as module
from mainspring.engine.commit.submitter import ThreadsafeSubmitter
from mainspring.model.change import Result
from mainspring.model.errors import StoreUnavailable
from mainspring.ports.store import Runs


async def crossing(store: Recording) -> ThreadsafeSubmitter:
    loop = asyncio.get_running_loop()
    return ThreadsafeSubmitter(await make(store), loop.call_soon_threadsafe)


async def test_a_hundred_coroutines_meet_in_one_commit() -> None:
    store = Recording()
    door = await crossing(store)
    results = await asyncio.gather(*(door.apply(enqueue()) for _ in range(100)))
    assert [result.status for result in results] == ["accepted"] * 100
    assert store.batches == [100]


async def test_threads_and_other_loops_get_their_results() -> None:
    store = Recording()
    door = await crossing(store)
    heard: list[Result] = []

    def blocking() -> None:
        heard.extend(door.apply_blocking(enqueue()) for _ in range(5))

    def with_a_loop() -> None:
        async def five() -> list[Result]:
            return list(await asyncio.gather(*(door.apply(enqueue()) for _ in range(5))))

        heard.extend(asyncio.run(five()))

    threads = [threading.Thread(target=body) for body in (blocking, with_a_loop, blocking, with_a_loop)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    assert [result.ok for result in heard] == [True] * 20
    assert len(await store.find(Runs(limit=100))) == 20


async def test_an_error_of_the_store_reaches_each_caller() -> None:
    store = Recording()
    door = await crossing(store)
    store.down = True
    results = await asyncio.gather(*(door.apply(enqueue()) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 3
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(door.apply_blocking, enqueue())


async def test_a_caller_cancelled_before_the_hop_has_stored_nothing() -> None:
    store = Recording()
    door = await crossing(store)
    gone = asyncio.ensure_future(door.apply(enqueue()))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert (await door.apply(enqueue())).ok
    assert len(await store.find(Runs(limit=10))) == 1


async def test_a_full_queue_makes_callers_wait_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_CHANGES", 10)
    store = Recording()
    door = await crossing(store)
    store.gate.clear()
    asked = [asyncio.ensure_future(door.apply(enqueue())) for _ in range(50)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert door._batcher.waiting <= 10
    store.gate.set()
    assert all(result.ok for result in await asyncio.gather(*asked))
    assert len(await store.find(Runs(limit=100))) == 50


async def test_a_caller_whose_loop_is_closed_does_not_disturb_the_others() -> None:
    store = Recording()
    door = await crossing(store)
    store.gate.clear()
    loop = asyncio.new_event_loop()
    asked = loop.create_task(door.apply(enqueue()))
    await asyncio.to_thread(_turn, loop)
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.to_thread(_turn, loop)
    loop.close()
    store.gate.set()
    assert (await door.apply(enqueue())).ok


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0))
