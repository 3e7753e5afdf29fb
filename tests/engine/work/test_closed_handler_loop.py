"""An engine whose handlers' loop has ended: it says so once, and its runs are not claimed and handed back for ever."""

from __future__ import annotations

import asyncio
import logging

import pytest

from mainspring import Event, Mainspring, State
from mainspring.app.internals import host_of, registry_of
from mainspring.model.events import RunHandedBack
from mainspring.runtime.runtime import Runtime
from mainspring.testing import travel
from tests.engine.support import START, WAIT

ADVICE = "In a synchronous program, write `with ms.background():` or call ms.start_background()"


async def test_runs_are_handed_back_once_and_an_hour_brings_no_further_events(
    ms: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    @ms.task
    async def work() -> None: ...

    closed = asyncio.new_event_loop()
    closed.close()
    async with travel(ms, START) as t:
        await t.runtime.workers.abort()  # the other instance shall claim
        handle = await work.enqueue()
        host = host_of(ms)
        other = Runtime(
            t.runtime.store, t.clock, host.ids.rng, ms.settings, registry_of(ms).handlers, host.bus, host.threads
        )
        await other.open()
        with caplog.at_level(logging.WARNING, "mainspring.engine"):
            await other.start(closed)
            await t.advance("10s")
            after_seconds = await ms.events(run=handle.id)
            await t.advance("1h")
            after_an_hour = await ms.events(run=handle.id)
        health = other.health()
        await other.stop(0)
        assert await handle.state() is State.WAITING
    assert [type(event).__name__ for event in after_seconds] == ["RunScheduled", "RunStarted", "RunHandedBack"]
    assert after_an_hour == after_seconds
    assert isinstance(after_seconds[-1], RunHandedBack)
    assert after_seconds[-1].reason == "loop_closed"
    assert [record.getMessage() for record in caplog.records if "event loop" in record.getMessage()] == [
        f"the event loop of the async handlers is closed: they cannot run until the next start. {ADVICE}"
    ]
    assert health.status == "degraded"
    assert "closed" in health.failing["handlers"]


async def test_a_loop_that_ends_within_the_block_of_running_stops_the_engine_and_says_the_right_call(
    ms: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    def run_and_leave() -> None:
        block = ms.running()
        asyncio.run(block.__aenter__())

    await asyncio.to_thread(run_and_leave)
    assert not ms.is_running
    assert ADVICE in caplog.text


def test_a_loop_that_no_longer_runs_is_named_in_the_log_and_in_health(
    ms: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    @ms.task
    async def work() -> str:
        return "ran"

    loop = asyncio.new_event_loop()
    block = ms.running()
    loop.run_until_complete(block.__aenter__())
    handed_back: list[Event] = []
    handle = work.sync.enqueue()
    while not handed_back:  # after a second the run goes back to the store
        handed_back = ms.sync.events(run=handle.id, types=[RunHandedBack])
    assert f"the event loop on which the engine was started does not run, so async handlers wait. {ADVICE}" in (
        caplog.text
    )
    assert "does not run" in ms.health().failing["handlers"]
    loop.run_until_complete(handle._handle.result(WAIT))  # when it runs again, all is well
    assert ms.health().status == "ok"
    loop.run_until_complete(block.__aexit__(None, None, None))
    loop.close()
