"""Each clock-change choice through the engine, and work that is due once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring import At, Cron, State
from mainspring.ledger.account import Ledger
from mainspring.model.instant import instant_ms
from mainspring.model.schedule import Span
from mainspring.ports.store import Schedules
from mainspring.testing.time_travel import travel
from tests.engine.noting import START, App, at, spans
from tests.ledger_checks import check_ledger


@pytest.fixture
def app() -> App:
    return App()


# ── clock changes: Europe/Berlin, 29 March 2026 02:00 → 03:00, 25 October 2026 03:00 → 02:00 ──


async def over_the_change(day: datetime, cron: Cron) -> tuple[list[str], Ledger, list[Span]]:
    app = App()
    async with travel(app.ms, day) as t:
        await app.ms.schedule("s", "note", cron=cron, overlap="allow_parallel")
        await t.advance("2d")
        return [fire.isoformat() for fire in app.fires], await check_ledger(t), await spans(t)


SPRING, AUTUMN = datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)


async def test_gap_shift_runs_at_the_end_of_the_gap() -> None:
    fires, book, found = await over_the_change(SPRING, Cron("30 2 * * *", tz="Europe/Berlin", gap="shift"))
    assert fires == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    assert (book.planned, book.skipped, found) == (2, {}, [])


async def test_gap_skip_leaves_a_dst_span_in_the_ledger() -> None:
    fires, book, found = await over_the_change(SPRING, Cron("30 2 * * *", tz="Europe/Berlin", gap="skip"))
    assert fires == ["2026-03-30T02:30:00+02:00"]
    assert (book.planned, book.skipped) == (2, {"dst": 1})
    end_of_gap = instant_ms("2026-03-29T01:00:00Z")
    assert [(span.after, span.through, span.count, span.reason) for span in found] == [
        (end_of_gap - 1, end_of_gap, 1, "dst")
    ]


async def test_gap_skip_is_not_counted_as_a_run() -> None:
    app = App()
    async with travel(app.ms, SPRING) as t:
        await app.ms.schedule("s", "note", cron=Cron("30 2 * * *", tz="Europe/Berlin", gap="skip"), max_runs=1)
        await t.advance("3d")
        assert [fire.isoformat() for fire in app.fires] == ["2026-03-30T02:30:00+02:00"]
        assert (await check_ledger(t)).planned == 2


@pytest.mark.parametrize("day", [27, 28], ids=["after a run", "without any run"])
async def test_a_dropped_fire_before_the_end_is_in_the_ledger_before_the_schedule_finishes(day: int) -> None:
    """The end comes between the gap and the next fire: nothing runs any more, and yet one fire is owed."""
    app = App()
    async with travel(app.ms, datetime(2026, 3, day, 12, tzinfo=UTC)) as t:
        cron = Cron("30 2 * * *", tz="Europe/Berlin", gap="skip")
        await app.ms.schedule("s", "note", cron=cron, end=datetime(2026, 3, 29, 12, tzinfo=UTC))
        await t.advance("3d")
        (row,) = await t.runtime.store.find(Schedules(states=("finished",)))
        assert (row.reason, row.cursor) == ("ended", instant_ms("2026-03-29T01:00:00Z"))
        assert (len(app.fires), (await check_ledger(t)).skipped) == (28 - day, {"dst": 1})


async def test_a_dropped_fire_before_the_end_is_awaited_after_a_resume_and_an_edit() -> None:
    app = App()
    async with travel(app.ms, SPRING) as t:
        cron, end = Cron("30 2 * * *", tz="Europe/Berlin", gap="skip"), datetime(2026, 3, 29, 12, tzinfo=UTC)
        await app.ms.schedule("s", "note", cron=cron, end=end)
        await app.ms.pause("s", reason="test")
        await t.advance("1h")
        await app.ms.resume("s")
        await app.ms.schedule("s", "note", cron=cron, end=end, priority="high", on_conflict="replace")
        await t.advance("2d")
        assert (await check_ledger(t)).skipped == {"dst": 1}


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("first", ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
        ("last", ["2026-10-25T02:30:00+01:00", "2026-10-26T02:30:00+01:00"]),
        ("both", ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-26T02:30:00+01:00"]),
    ],
)
async def test_overlap_first_last_both(overlap: Any, expected: list[str]) -> None:
    fires, book, found = await over_the_change(AUTUMN, Cron("30 2 * * *", tz="Europe/Berlin", overlap=overlap))
    assert fires == expected
    assert (book.planned, book.skipped, found) == (len(expected), {}, [])


@pytest.mark.parametrize(("day", "hours"), [(SPRING, 48), (AUTUMN, 48)], ids=["spring", "autumn"])
async def test_a_schedule_that_begins_with_a_star_follows_elapsed_time(day: datetime, hours: int) -> None:
    fires, book, _ = await over_the_change(day, Cron("*/30 * * * *", tz="Europe/Berlin"))
    assert (len(fires), book.planned, book.unexplained) == (2 * hours, 2 * hours, 0)
    assert len({datetime.fromisoformat(fire).astimezone(UTC) for fire in fires}) == 2 * hours


async def test_paused_over_a_gap_the_dropped_fire_is_in_the_pause() -> None:
    app = App()
    async with travel(app.ms, SPRING) as t:
        await app.ms.schedule("s", "note", cron=Cron("30 2 * * *", tz="Europe/Berlin", gap="skip"))
        await app.ms.pause("s")
        await t.advance("2d")
        await app.ms.resume("s")
        book = await check_ledger(t)
        assert (book.planned, book.skipped) == (2, {"paused": 2})


# ── one-time, delayed, immediate ──


async def test_one_time_at_an_instant(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", at=at(9, 30))
        await t.advance("1d")
        assert (app.fires, app.ran) == ([at(9, 30)], [at(9, 30)])
        assert ((await app.ms.get("s")).state, (await check_ledger(t)).planned) == ("finished", 1)


async def test_one_time_of_an_at_trigger_keeps_its_order_and_drops_duplicates(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", trigger=At([at(10), at(9), at(10)]))
        await t.advance("1d")
        assert app.fires == [at(9), at(10)]
        await check_ledger(t)


async def test_delayed_by_a_duration(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.schedule("s", "note", delay="90m")
        handle = await app.ms.tasks["note"].using(delay="2h").enqueue()
        await t.advance("1h59m")
        assert app.ran == [at(9, 30)]
        await t.advance("1m")
        assert app.ran == [at(9, 30), at(10)]
        assert (await handle.state()) is State.SUCCEEDED
        book = await check_ledger(t)
        assert (book.planned, book.ad_hoc.enqueued, book.ad_hoc.ended) == (1, 1, 1)


async def test_immediate_is_a_job_queue(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.tasks["note"].enqueue_many([()] * 25)
        await t.settle()
        assert app.ran == [START] * 25
        book = await check_ledger(t)
        assert (book.ad_hoc.enqueued, book.ad_hoc.ended, book.ad_hoc.open) == (25, 25, 0)


async def test_an_instant_in_the_past_runs_at_once_when_enqueued_and_never_when_scheduled(app: App) -> None:
    async with travel(app.ms, START) as t:
        await app.ms.tasks["note"].using(at=at(7)).enqueue()
        made = await app.ms.schedule("s", "note", at=at(7))
        await t.advance("1h")
        assert app.ran == [START]
        assert made.state == "finished"
        await check_ledger(t)
