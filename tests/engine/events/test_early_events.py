"""Events that a program commits before its engine runs: subscribers get them when the engine starts."""

from __future__ import annotations

import logging

import pytest

from mainspring import Mainspring
from mainspring.engine.events.bus import MAX_EARLY_EVENTS
from mainspring.model.events import RunScheduled, RunSucceeded, ScheduleCreated


def test_events_committed_before_the_start_reach_the_subscribers_in_order_and_once(ms: Mainspring) -> None:
    heard: list[str] = []

    @ms.task
    async def work(number: int) -> None: ...

    ms.on_event((RunScheduled, RunSucceeded), lambda event: heard.append(f"{type(event).__name__} {event.run_id}"))
    handles = [work.sync.enqueue(number) for number in range(3)]
    handles += work.sync.enqueue_many([(3,), (4,)])
    assert heard == []  # there is no loop yet on which they could be called
    ms.run(until_idle=True)
    ids = [handle.id for handle in handles]
    assert heard[:5] == [f"RunScheduled {run_id}" for run_id in ids]
    assert sorted(heard[5:]) == sorted(f"RunSucceeded {run_id}" for run_id in ids)
    ms.run(until_idle=True)
    assert len(heard) == 10  # the second start repeats nothing


def test_events_between_two_runs_of_the_engine_are_not_lost(ms: Mainspring) -> None:
    heard: list[str | None] = []

    @ms.task
    async def work() -> None: ...

    ms.on_event(RunScheduled, lambda event: heard.append(event.run_id))
    ms.run(until_idle=True)
    between = work.sync.enqueue()
    ms.run(until_idle=True)
    assert heard == [between.id]


def test_declared_schedules_are_created_before_the_loop_is_bound_and_are_heard_of(ms: Mainspring) -> None:
    heard: list[str] = []

    @ms.every("1h")
    async def nightly() -> None: ...

    ms.on_event(ScheduleCreated, lambda event: heard.append(type(event).__name__))
    ms.run(until_idle=True)
    assert heard == ["ScheduleCreated"]


def test_without_an_engine_the_latest_events_are_kept_and_a_warning_is_logged_once(
    ms: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str | None] = []

    @ms.task
    async def work(number: int) -> None: ...

    ms.on_event(RunScheduled, lambda event: heard.append(event.run_id))
    with caplog.at_level(logging.WARNING, "mainspring.events"):
        ids = [handle.id for count in (5, MAX_EARLY_EVENTS) for handle in work.sync.enqueue_many([(count,)] * count)]
    ms.run(until_idle=True)
    assert heard == ids[5:]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        f"the engine does not run, and more than {MAX_EARLY_EVENTS} events wait for the subscriber test_"
    )
    assert said.endswith("so the oldest are dropped")
