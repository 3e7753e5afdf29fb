"""The ledger equation: over revisions, pauses, misses, clock changes, limits, windows and retention."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from mainspring.backends.memory.store import MemoryStore
from mainspring.ledger.account import Ledger, ledger
from mainspring.ledger.verify import verify
from mainspring.model.instant import Ms, instant_ms
from mainspring.model.retention import Retention
from mainspring.model.schedule import ScheduleSpec
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec
from mainspring.rules.run_commands import Complete, Fail, RequestCancel
from mainspring.testing.contract.factories import T0
from proof.scenario import Scenario

MINUTE: Ms = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
EVERY_MINUTE = ScheduleSpec(CronSpec("* * * * *"), "t", overlap="allow_parallel")


@pytest.fixture
def s() -> Scenario:
    return Scenario(MemoryStore())


def balance(book: Ledger) -> int:
    return book.planned - book.ended - book.open - sum(book.skipped.values()) - book.missed


async def check(s: Scenario, now: Ms, since: Ms | None = None) -> Ledger:
    """The ledger is balanced, nothing is unexplained, and the log proves the rows."""
    book = await ledger(s.store, now, since)
    assert book.unexplained == 0, book.differences
    assert balance(book) == 0, book
    report = await verify(s.store)
    assert report.ok, report.differences
    return book


async def test_an_empty_store_owes_nothing(s: Scenario) -> None:
    book = await check(s, T0)
    assert (book.planned, book.schedules, book.ad_hoc.enqueued) == (0, [], 0)


async def test_ended_open_and_behind(s: Scenario) -> None:
    sid = await s.create(EVERY_MINUTE, T0)
    for minute in range(1, 6):
        await s.settle(sid, T0 + minute * MINUTE)
    await s.work(T0 + 3 * MINUTE)
    book = await check(s, T0 + 9 * MINUTE)
    assert (book.planned, book.ended, book.open, book.behind) == (5, 3, 2, 4)


async def test_revisions_are_added_up(s: Scenario) -> None:
    sid = await s.create(EVERY_MINUTE, T0)
    await s.settle(sid, T0 + MINUTE)
    await s.update(sid, replace(EVERY_MINUTE, trigger=EverySpec(10_000)), T0 + 90_000)
    await s.settle(sid, T0 + 2 * MINUTE)
    await s.update(sid, replace(EVERY_MINUTE, trigger=CronSpec("*/5 * * * *")), T0 + 2 * MINUTE + 5_000)
    await s.settle(sid, T0 + 10 * MINUTE)
    await s.delete(sid, T0 + 12 * MINUTE)
    book = await check(s, T0 + DAY)
    assert book.planned == 1 + 3 + 2
    assert book.behind == 0
    assert book.schedules[0].state == "deleted"


async def test_a_pause_is_one_span_of_many_fires(s: Scenario) -> None:
    sid = await s.create(replace(EVERY_MINUTE, trigger=EverySpec(1_000)), T0)
    await s.settle(sid, T0 + 5_000)
    await s.pause(sid, T0 + 5_500)
    assert (await check(s, T0 + DAY)).behind == 0
    await s.resume(sid, T0 + 30 * DAY + 500)
    await s.settle(sid, T0 + 30 * DAY + 2_000)
    book = await check(s, T0 + 30 * DAY + 2_000)
    assert book.skipped == {"paused": 30 * 86_400 - 5}
    assert book.planned == 30 * 86_400 + 2


async def test_missed_fires_are_counted(s: Scenario) -> None:
    sid = await s.create(EVERY_MINUTE, T0)
    await s.settle(sid, T0 + HOUR)
    book = await check(s, T0 + HOUR)
    assert (book.planned, book.missed, book.open) == (60, 57, 3)


async def test_skipped_by_overlap(s: Scenario) -> None:
    sid = await s.create(replace(EVERY_MINUTE, overlap="forbid"), T0)
    await s.settle(sid, T0 + MINUTE)
    await s.settle(sid, T0 + 2 * MINUTE)
    book = await check(s, T0 + 2 * MINUTE)
    assert (book.open, book.skipped) == (1, {"overlap": 1})


async def test_a_fire_lost_in_a_clock_change_has_a_span(s: Scenario) -> None:
    spec = replace(EVERY_MINUTE, trigger=CronSpec("30 2 * * *", tz="Europe/Berlin", gap="skip"))
    start = instant_ms(datetime(2026, 3, 27, tzinfo=UTC))
    sid = await s.create(spec, start)
    for day in range(1, 5):
        await s.settle(sid, start + day * DAY)
    book = await check(s, start + 4 * DAY)
    assert book.planned == 4
    assert book.skipped == {"dst": 1}


@pytest.mark.parametrize("later", [False, True])
async def test_nothing_is_owed_after_max_runs(s: Scenario, later: bool) -> None:
    sid = await s.create(replace(EVERY_MINUTE, max_runs=3), T0)
    for minute in range(1, 6):
        await s.settle(sid, T0 + minute * MINUTE)
    assert (await check(s, T0 + HOUR)).planned == 3
    if later:
        await s.update(sid, EVERY_MINUTE, T0 + HOUR)
        await s.settle(sid, T0 + HOUR + MINUTE)
        assert (await check(s, T0 + HOUR + MINUTE)).planned == 4


async def test_start_end_and_a_list_of_times(s: Scenario) -> None:
    bounded = replace(EVERY_MINUTE, start=T0 + 2 * MINUTE, end=T0 + 4 * MINUTE)
    sid = await s.create(bounded, T0)
    listed = await s.create(replace(EVERY_MINUTE, trigger=AtSpec((T0 + 1, T0 + 5))), T0, "listed")
    for at in (T0 + 1, T0 + 3 * MINUTE, T0 + HOUR):
        await s.settle(sid, at)
        await s.settle(listed, at)
    assert (await check(s, T0 + HOUR)).planned == 3 + 2


async def test_outside_the_window(s: Scenario) -> None:
    from mainspring.model.policies import RunOptions
    from mainspring.rules.windows import Window

    spec = replace(EVERY_MINUTE, options=RunOptions(window=Window("01:00-02:00")), missed="replay_all", grace=DAY)
    sid = await s.create(replace(spec, grace=0), T0)
    for minute in range(1, 121):
        await s.settle(sid, T0 + minute * MINUTE)
    book = await check(s, T0 + 2 * HOUR)
    assert book.planned == 120
    assert book.open == 60


@pytest.mark.parametrize("at", [90, 57 * MINUTE, HOUR, HOUR + 30_000])
async def test_a_window_of_time(s: Scenario, at: Ms) -> None:
    sid = await s.create(EVERY_MINUTE, T0)
    await s.settle(sid, T0 + HOUR)
    await s.work(T0 + HOUR)
    await s.pause(sid, T0 + HOUR)
    await s.update(sid, replace(EVERY_MINUTE, trigger=CronSpec("*/2 * * * *")), T0 + 2 * HOUR)
    await s.resume(sid, T0 + 3 * HOUR)
    everything = (await check(s, T0 + 3 * HOUR)).planned
    assert everything == 60 + 60 + 30
    book = await check(s, T0 + 3 * HOUR, since=T0 + at)
    assert book.planned == sum(1 for m in range(1, 121) if m * MINUTE >= at) + 30


async def test_after_retention_the_equation_holds(s: Scenario) -> None:
    sid = await s.create(replace(EVERY_MINUTE, trigger=CronSpec("0 * * * *"), missed="skip"), T0)
    for hour in range(1, 73):
        if hour % 24 != 7:  # every seventh hour is missed
            await s.settle(sid, T0 + hour * HOUR)
            await s.work(T0 + hour * HOUR)
    await s.update(sid, replace(EVERY_MINUTE, trigger=CronSpec("30 * * * *")), T0 + 72 * HOUR + 1)
    await s.enqueue(T0 + HOUR)
    await s.work(T0 + 2 * HOUR)
    before = await check(s, T0 + 72 * HOUR + 1)
    purged = await s.store.purge(Retention(T0 + 36 * HOUR), 1_000, now=T0 + 73 * HOUR)
    assert purged.runs > 20
    await s.settle(sid, T0 + 73 * HOUR)
    after = await check(s, T0 + 73 * HOUR)
    assert after.planned == before.planned + 1
    assert after.missed == before.missed
    assert after.ad_hoc.enqueued == 1
    await s.store.purge(Retention(T0 + 60 * HOUR), 1_000, now=T0 + 73 * HOUR)
    assert (await check(s, T0 + 73 * HOUR)).planned == before.planned + 1
    windowed = await check(s, T0 + 73 * HOUR, since=T0 + 30 * HOUR)
    assert windowed.rounded
    assert windowed.since == T0 + DAY
    assert windowed.planned == 73 - 24 + 1


async def test_a_deleted_row_is_named_although_tallies_exist(s: Scenario) -> None:
    sid = await s.create(EVERY_MINUTE, T0)
    for minute in range(1, 10):
        await s.settle(sid, T0 + minute * MINUTE)
        await s.work(T0 + minute * MINUTE)
    await s.store.purge(Retention(T0 + 5 * MINUTE), 1_000, now=T0 + HOUR)
    await check(s, T0 + 9 * MINUTE)
    victim = (await s.runs(sid))[2]
    del s.store._runs[victim.id]  # type: ignore[attr-defined]
    book = await ledger(s.store, T0 + 9 * MINUTE)
    assert book.unexplained == 1
    assert [d.run_id for d in book.differences] == [victim.id]


async def test_fixed_delay(s: Scenario) -> None:
    sid = await s.create(replace(EVERY_MINUTE, trigger=EverySpec(MINUTE, fixed_delay=True)), T0)
    now = T0
    for _ in range(3):
        now += MINUTE
        await s.settle(sid, now)
        (run,) = await s.claim(now)
        now += 10_000
        await s.finish(run, Complete(now, 5), now)
        await s.rearm(sid, now)
    book = await check(s, now + MINUTE)
    assert (book.planned, book.ended, book.behind) == (3, 3, 1)
    await s.store.purge(Retention(T0 + 90_000), 1_000, now=now)
    assert (await check(s, now)).planned == 3
    await s.update(sid, EVERY_MINUTE, now + 1)
    await s.settle(sid, now + MINUTE)
    assert (await check(s, now + MINUTE)).planned == 4
    victim = (await s.runs(sid))[0]
    del s.store._runs[victim.id]  # type: ignore[attr-defined]
    book = await ledger(s.store, now + MINUTE)
    assert book.unexplained == 1
    assert book.differences[0].run_id == victim.id


async def test_ad_hoc_work_has_its_own_line(s: Scenario) -> None:
    ids = [await s.enqueue(T0 + i) for i in range(4)]
    await s.command(ids[3], RequestCancel("no"), T0 + 4)
    first, second, *_ = await s.claim(T0 + 5)
    await s.finish(first, Complete(T0 + 5, 1), T0 + 6)
    await s.finish(second, Fail("boom", retry_at=T0 + 9), T0 + 6)
    book = await check(s, T0 + 10)
    assert (book.ad_hoc.enqueued, book.ad_hoc.ended, book.ad_hoc.open) == (4, 2, 2)
    assert (await check(s, T0 + 10, since=T0 + 2)).ad_hoc.enqueued == 2
    assert (book.planned, book.ended) == (0, 0)


async def test_many_missing_are_counted_and_some_named(s: Scenario) -> None:
    sid = await s.create(replace(EVERY_MINUTE, trigger=EverySpec(1_000), missed="replay_all"), T0)
    await s.settle(sid, T0 + 100_000)
    for run in (await s.runs(sid))[10:60]:
        del s.store._runs[run.id]  # type: ignore[attr-defined]
    book = await ledger(s.store, T0 + 100_000)
    assert book.unexplained == 50
    assert len(book.differences) == 20
    assert book.differences[0].fire_time == "2024-01-01T00:00:11Z"
