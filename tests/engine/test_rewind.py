"""Schedules that a wrong clock planned ahead, and the rewind that sets them back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring import Every, Window
from mainspring.backends.memory.store import MemoryStore
from mainspring.ledger.account import ledger
from mainspring.ledger.copy import copy
from mainspring.ledger.verify import verify
from mainspring.model.events import FireCountedAgain, ScheduleRewound
from mainspring.model.instant import Ms
from mainspring.model.run import Run
from mainspring.model.schedule import Schedule
from mainspring.ports.store import Events, Schedules, Spans
from mainspring.rules.rewind import is_ahead
from mainspring.testing.time_travel import Travel, travel
from tests.engine.noting import START, App, at, ms_at
from tests.ledger_checks import check_ledger

HOUR: Ms = 3_600_000
#: The engine notices a step of the clock when it plans next, at the next fire.
STEADY = "12m"


@pytest.fixture
def app() -> App:
    return App()


async def row_of(t: Travel) -> Schedule:
    (row,) = await t.runtime.store.find(Schedules(name="s"))
    return row


async def wrong_clock(t: Travel, by: Ms, for_: str = STEADY) -> None:
    """Let the engine work under a clock that is ahead by `by`, then set the clock right."""
    t.step_wall_clock(by)
    await t.advance(for_)
    t.step_wall_clock(-by)
    await t.advance(STEADY)


async def check(t: Travel) -> None:
    """Everything adds up: the ledger, the rows by the log, and no fire time has two runs."""
    await check_ledger(t)
    report = await verify(t.runtime.store)
    assert report.ok, report.differences
    runs = await t.runs("s")
    assert len({run.fire_time for run in runs}) == len(runs)


def fire_minutes(runs: list[Run]) -> list[int]:
    return [((run.fire_time or 0) - ms_at(8)) // 60_000 for run in runs]


async def test_a_rewound_schedule_fires_again_and_runs_no_fire_twice(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", cron="*/10 * * * *")
        await t.advance("15m")
        await wrong_clock(t, 5 * HOUR)  # 08:15 becomes 13:15, and at 13:20 one run makes up for all before
        schedule = await row_of(t)
        assert is_ahead(schedule, t.clock.now())
        assert fire_minutes(await t.runs("s")) == [10, 310, 320]
        await t.advance("1h")
        assert fire_minutes(await t.runs("s")) == [10, 310, 320]  # nothing fires any more
        await check(t)

        assert (await app.ms.rewind("s")).next_run == at(9, 40)  # now is 09:39
        row = await row_of(t)
        assert (row.cursor, row.state) == (t.clock.now(), "active")
        assert not is_ahead(row, t.clock.now())
        await check(t)
        await t.advance("5h")
        # The fires until the rewind stay in the span. All later ones run; 13:10 and 13:20 have their runs.
        assert fire_minutes(await t.runs("s")) == [10, *range(100, 400, 10)]
        await check(t)
        (event,) = await t.runtime.store.find(Events(types=("ScheduleRewound",)))
        assert isinstance(event, ScheduleRewound)
        assert (event.from_, event.to, event.taken_back) == (schedule.cursor, row.cursor, 21)
        again = await t.runtime.store.find(Events(types=("FireCountedAgain",)))
        assert [one.fire_time for one in again if isinstance(one, FireCountedAgain)] == [ms_at(13, 10), ms_at(13, 20)]


async def test_a_schedule_that_is_not_ahead_is_left_as_it_is(app: App) -> None:
    async with travel(app.ms, START) as t:
        before = await app.ms.schedule("s", "note", every="10m")
        assert await app.ms.rewind("s") == before
        await check(t)


async def test_a_schedule_that_finished_under_a_wrong_clock_is_active_again(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="10m", max_runs=4, missed="skip")
        await wrong_clock(t, 5 * HOUR)
        assert (await app.ms.get("s")).state == "finished"
        await app.ms.rewind("s")
        row = await row_of(t)
        assert (row.state, row.reason, row.fired) == ("active", None, 2)
        await t.advance("6h")
        assert (await app.ms.get("s")).state == "finished"
        assert len(await t.runs("s")) == 2  # the span that was kept stands for the other two
        await check(t)


async def test_runs_that_count_again_count_once_against_max_runs(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", cron="*/10 * * * *", missed="replay_all", max_runs=30)
        await wrong_clock(t, HOUR)
        fired = (await row_of(t)).fired
        await app.ms.rewind("s")
        assert (await row_of(t)).fired < fired
        await t.advance("90m")
        assert (await row_of(t)).fired == (await check_ledger(t)).planned == len(await t.runs("s"))
        await check(t)


async def test_a_schedule_that_was_made_under_a_wrong_clock_counts_from_the_rewind(app: App) -> None:
    async with travel(app.ms, START) as t:
        t.step_wall_clock(5 * HOUR)
        await t.advance(STEADY)
        await app.ms.schedule("s", "note", every="10m")
        t.step_wall_clock(-5 * HOUR)
        await t.advance("1h")
        assert app.fires == []
        await app.ms.rewind("s")
        await t.advance("1h")
        assert len(app.fires) == 6
        await check(t)


async def test_a_fixed_delay_goes_on_after_a_rewind(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every=Every("10m", fixed_delay=True))
        await wrong_clock(t, 5 * HOUR)
        await app.ms.rewind("s")
        count = len(app.fires)
        await t.advance("1h")
        assert len(app.fires) - count in (5, 6)
        await check(t)


async def test_a_paused_schedule_stays_paused(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="10m")
        await wrong_clock(t, 5 * HOUR)
        await app.ms.pause("s")
        await app.ms.rewind("s")
        row = await row_of(t)
        assert (row.state, row.next_at) == ("paused", None)
        await t.advance("6h")
        await app.ms.resume("s")
        await check(t)
        await t.advance("1h")
        await check(t)


async def test_an_edit_after_a_rewind_leaves_the_runs_of_the_future_out_of_the_account(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", cron="*/10 * * * *", missed="replay_all")
        await wrong_clock(t, 5 * HOUR)
        await app.ms.rewind("s")
        await app.ms.update("s", cron="7 * * * *")
        await t.advance("6h")
        book = await check_ledger(t)
        (line,) = book.schedules
        assert line.taken_back == 29
        await check(t)


async def test_a_schedule_ahead_is_logged_and_degrades_health_until_it_is_rewound(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", every="10m")
        await t.advance("1m")
        assert app.ms.health().ok
        await wrong_clock(t, 10 * 365 * 24 * HOUR)
        health = app.ms.health()
        assert (health.status, list(health.failing)) == ("degraded", ["schedules"])
        assert "planned ahead of the clock: 's'" in health.failing["schedules"]
        (line,) = {record.getMessage() for record in caplog.records if "was planned up to" in record.getMessage()}
        assert line.startswith("schedule 's' was planned up to 2036-01-0")
        assert line.endswith("was the clock wrong? Run: mainspring schedules rewind s")
        assert "10 years from now" in line
        book = await check_ledger(t)
        assert (book.ahead, book.warnings, book.schedules[0].ahead) == (1, [line], (await row_of(t)).cursor)
        logged = len(caplog.records)
        await t.advance("1h")
        assert len([record for record in caplog.records[logged:] if "was planned" in record.getMessage()]) == 1
        await app.ms.rewind("s")
        await t.advance("1m")
        assert app.ms.health().ok
        assert (await check_ledger(t)).ahead == 0


async def test_a_copy_of_a_rewound_store_adds_up(app: App) -> None:
    """The log still has the whole span that the rewind has cut, on an earlier page than the rewind."""
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", cron="*/10 * * * *")
        await wrong_clock(t, 5 * HOUR)
        await app.ms.rewind("s")
        await t.advance("1h")
        for page in (1, 1_000):
            target = MemoryStore()
            await target.open()
            await copy(t.runtime.store, target, force=True, page=page)
            report = await verify(target)
            assert report.ok, report.differences
            assert await target.find(Spans()) == await t.runtime.store.find(Spans()) != []
            assert (await ledger(target, t.clock.now())).unexplained == 0
            await target.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(-300, 600)),
        st.tuples(st.just("advance"), st.integers(1, 90)),
        st.tuples(st.sampled_from(["rewind", "pause", "resume", "edit"]), st.integers(0, 3)),
    ),
    min_size=2,
    max_size=12,
)
TRIGGERS: list[dict[str, Any]] = [
    {"cron": "*/10 * * * *"},
    {"every": "7m"},
    {"every": "30m"},
    {"every": Every("11m", fixed_delay=True)},
]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=STEPS,
    trigger=st.integers(0, 3),
    missed=st.sampled_from(["skip", "catch_up_once", "replay_all"]),
    window=st.booleans(),
    max_runs=st.sampled_from([None, 5, 40]),
)
def test_wrong_clocks_and_rewinds_leave_nothing_unexplained_and_run_no_fire_twice(
    steps: list[tuple[str, int]], trigger: int, missed: Any, window: bool, max_runs: int | None
) -> None:
    async def live() -> None:
        app = App()
        async with travel(app.ms, START) as t:
            options = {"window": Window("09:00-11:00", "12:00-16:00")} if window else {}
            await app.ms.schedule("s", "note", **TRIGGERS[trigger], missed=missed, max_runs=max_runs, **options)
            for verb, number in steps:
                match verb:
                    case "step":
                        t.step_wall_clock(number * 60_000)
                        await t.advance(STEADY)
                    case "advance":
                        await t.advance(f"{number}m")
                    case "rewind":
                        await app.ms.rewind("s")
                    case "pause":
                        if (await app.ms.get("s")).state != "finished":
                            await app.ms.pause("s")
                    case "resume":
                        await app.ms.resume("s")
                    case "edit":
                        await app.ms.update("s", **TRIGGERS[number])
                await check(t)
            await app.ms.rewind("s")
            await check(t)
            await t.advance("3h")
            await check(t)
            assert len(app.fires) == len(set(app.fires))

    asyncio.run(live())
