"""The bullets of source 003, "Scheduling semantics", each through our own API."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from mainspring import Context, Cron, Every, Mainspring, State, Window
from mainspring.ledger.account import Ledger
from mainspring.model.events import RunSkipped
from mainspring.model.instant import instant_ms
from mainspring.testing.time_travel import travel
from tests.engine.semantics import START, Log, at
from tests.ledger_checks import check_ledger
from tests.stored_rows import stored


@pytest.fixture
def ms() -> Mainspring:
    return Mainspring("memory://", lease_ttl="10m")


@pytest.fixture
def log(ms: Mainspring) -> Log:
    log = Log()
    log.on(ms)
    return log


# ── Schedule::AtTimes never executes immediately on startup. The first run waits until the first planned time. ──


async def test_at_times_never_executes_immediately_on_startup(ms: Mainspring, log: Log) -> None:
    async with travel(ms, START) as t:
        await ms.schedule("s", "note", at=[START - timedelta(hours=1), START, at(9)])
        await t.advance("59m59s")
        assert log == []
        await check_ledger(t)


async def test_at_times_the_first_run_waits_until_the_first_planned_time(ms: Mainspring, log: Log) -> None:
    async with travel(ms, START) as t:
        await ms.schedule("s", "note", at=[at(9), at(10)])
        await t.advance("1h")
        assert log == [at(9)]
        await t.advance("5h")
        assert log == [at(9), at(10)]
        assert (await ms.get("s")).reason == "exhausted"
        assert (await check_ledger(t)).planned == 2


# ── Schedule::AtTimes(Vec::new()) is a valid no-op schedule and exits without running. ──


async def test_at_times_empty_is_a_valid_no_op_schedule_and_exits_without_running(ms: Mainspring, log: Log) -> None:
    async with travel(ms, START) as t:
        made = await stored(ms, ms.schedule("s", "note", at=[]))
        assert (made.state, made.reason, made.next_at) == ("finished", "exhausted", None)
        await t.advance("2d")
        assert (log, await t.runs("s")) == ([], [])
        assert (await check_ledger(t)).planned == 0


# ── Schedule::Interval schedules the first run at now + interval. ──


async def test_interval_schedules_the_first_run_at_now_plus_interval(ms: Mainspring, log: Log) -> None:
    async with travel(ms, START + timedelta(seconds=7)) as t:
        made = await stored(ms, ms.schedule("s", "note", every="10m"))
        assert made.next_at == instant_ms(START + timedelta(minutes=10, seconds=7))
        await t.advance("9m59s")
        assert log == []
        await t.advance("1s")
        assert log == [START + timedelta(minutes=10, seconds=7)]
        await t.advance("20m")
        assert [fire - START for fire in log] == [timedelta(minutes=10 * n, seconds=7) for n in (1, 2, 3)]
        await check_ledger(t)


# ── Schedule::Cron evaluates a standard 5-field expression in SchedulerConfig::timezone. ──


async def test_cron_evaluates_a_standard_5_field_expression_in_the_schedulers_timezone() -> None:
    ms, log = Mainspring("memory://", tz="Asia/Shanghai", lease_ttl="10m"), Log()
    log.on(ms)
    async with travel(ms, START) as t:
        await ms.schedule("s", "note", cron="30 9 * * Tue")
        await t.advance("7d")
        assert log == [datetime(2026, 1, 6, 9, 30, tzinfo=ZoneInfo("Asia/Shanghai"))]
        assert (await stored(ms, ms.get("s"))).spec.tz == "Asia/Shanghai"
        await check_ledger(t)


# ── max_runs applies to interval schedules, explicit AtTimes schedules, and cron schedules. ──


@pytest.mark.parametrize(
    "when",
    [{"every": "1h"}, {"at": [at(hour) for hour in range(9, 15)]}, {"cron": "0 * * * *"}],
    ids=["interval", "at_times", "cron"],
)
async def test_max_runs_applies_to_interval_at_times_and_cron_schedules(
    ms: Mainspring, log: Log, when: dict[str, object]
) -> None:
    async with travel(ms, START) as t:
        await ms.schedule("s", "note", max_runs=2, **when)  # type: ignore[arg-type]
        await t.advance("2d")
        assert log == [at(9), at(10)]
        done = await ms.get("s")
        assert (done.state, done.reason, done.fired) == ("finished", "max_runs", 2)
        assert (await check_ledger(t)).planned == 2


# ── with_max_runs(0) exits immediately without running any task. ──


@pytest.mark.parametrize(
    "when",
    [{"every": "1h"}, {"every": Every("1h", fixed_delay=True)}, {"at": [at(9)]}, {"cron": "0 * * * *"}],
    ids=["interval", "fixed_delay", "at_times", "cron"],
)
async def test_max_runs_0_exits_immediately_without_running_any_task(
    ms: Mainspring, log: Log, when: dict[str, object]
) -> None:
    async with travel(ms, START) as t:
        made = await ms.schedule("s", "note", max_runs=0, **when)  # type: ignore[arg-type]
        assert (made.state, made.reason) == ("finished", "max_runs")
        await t.advance("2d")
        assert (log, await t.runs("s")) == ([], [])
        assert (await check_ledger(t)).planned == 0


# ── Task::from_sync is for lightweight synchronous logic. Use Task::from_blocking for blocking I/O … ──


async def test_from_sync_is_for_lightweight_logic_on_the_loop_and_from_blocking_runs_in_a_thread() -> None:
    """On the real clock and real threads: `executor="loop"` is from_sync, a plain `def` is from_blocking."""
    ms = Mainspring("memory://")
    where: dict[str, int] = {}

    @ms.task(executor="loop")
    def light() -> None:
        where["light"] = threading.get_ident()

    @ms.task
    def blocking() -> None:
        where["blocking"] = threading.get_ident()

    async with ms.running():
        await (await light.enqueue()).result(timeout="30s")
        await (await blocking.enqueue()).result(timeout="30s")
    assert where["light"] == threading.get_ident()
    assert where["blocking"] != threading.get_ident()


# ── MissedRunPolicy ──


async def downtime(path: Path, missed: str, log: Log) -> tuple[list[tuple[datetime, bool]], Ledger]:
    """Hourly, up for an hour, away from 09:30 to 13:30, then up until 14:00; what ran after the downtime."""
    ran: list[tuple[datetime, bool]] = []

    def app() -> Mainspring:
        ms = Mainspring(f"sqlite:///{path}/missed.db")

        @ms.task(name="note")
        async def note(ctx: Context) -> None:
            ran.append((ctx.fire_time, ctx.catch_up))

        return ms

    first = app()
    async with travel(first, START) as t:
        await first.schedule("s", "note", every="1h", missed=missed)  # type: ignore[arg-type]
        await t.advance("90m")
    assert ran == [(at(9), False)]
    ran.clear()
    async with travel(app(), at(13, 30)) as t:
        assert all(t.now == at(13, 30) for _ in ran)
        await t.advance("30m")
        return ran, await check_ledger(t)


async def test_missed_run_policy_skip_drops_missed_occurrences_and_waits_for_the_next_future_trigger(
    tmp_path: Path, log: Log
) -> None:
    ran, book = await downtime(tmp_path, "skip", log)
    assert ran == [(at(14), False)]
    assert (book.planned, book.ended, book.missed) == (6, 2, 4)


async def test_missed_run_policy_catch_up_once_runs_one_immediate_compensating_execution(
    tmp_path: Path, log: Log
) -> None:
    ran, book = await downtime(tmp_path, "catch_up_once", log)
    assert ran == [(at(13), True), (at(14), False)]
    assert (book.planned, book.ended, book.missed) == (6, 3, 3)


async def test_missed_run_policy_replay_all_replays_each_missed_occurrence_in_schedule_order(
    tmp_path: Path, log: Log
) -> None:
    ran, book = await downtime(tmp_path, "replay_all", log)
    assert ran == [(at(10), True), (at(11), True), (at(12), True), (at(13), True), (at(14), False)]
    assert (book.planned, book.ended, book.missed) == (6, 6, 0)


# ── OverlapPolicy ──


class Slow:
    """A task that takes 150 s, and how many of it ran at once."""

    def __init__(self, ms: Mainspring) -> None:
        self.now = self.most = self.done = 0

        @ms.task(name="slow")
        async def slow() -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(150)
            self.now -= 1
            self.done += 1


async def test_overlap_policy_forbid_skips_triggers_while_a_run_is_active(ms: Mainspring) -> None:
    slow = Slow(ms)
    async with travel(ms, START) as t:
        await ms.schedule("s", "slow", every="1m", overlap="forbid")
        await t.advance("5m")
        runs = await t.runs("s")
        assert [run.state for run in runs] == ["succeeded", "skipped", "skipped", "running", "skipped"]
        assert {run.reason for run in runs if run.state is State.SKIPPED} == {"overlap"}
        assert slow.most == 1
        await check_ledger(t)


async def test_overlap_policy_queue_one_keeps_at_most_one_pending_trigger_while_a_run_is_active(ms: Mainspring) -> None:
    slow = Slow(ms)
    async with travel(ms, START) as t:
        await ms.schedule("s", "slow", every="1m", overlap="queue_one")
        await t.advance("3m")
        runs = await t.runs("s")
        assert [run.state for run in runs] == ["running", "waiting", "skipped"]  # the first queued stays
        await t.advance("30s")
        assert [run.state for run in await t.runs("s")] == ["succeeded", "running", "skipped"]
        assert slow.most == 1
        await check_ledger(t)


async def test_overlap_policy_allow_parallel_spawns_overlapping_runs(ms: Mainspring) -> None:
    slow = Slow(ms)
    async with travel(ms, START) as t:
        await ms.schedule("s", "slow", every="1m", overlap="allow_parallel")
        await t.advance("3m")
        assert [run.state for run in await t.runs("s")] == ["running", "running", "running"]
        await t.advance("30s")
        assert (slow.most, slow.done) == (3, 1)
        await check_ledger(t)


# ── JobTimeWindow is checked at execution time; outside-window occurrences are consumed, skipped, reported … ──


async def test_job_time_window_is_checked_at_execution_time(ms: Mainspring) -> None:
    """Planned inside the window, but its slot came free only after the window had closed."""
    ran: list[str] = []

    @ms.task(limit=1, timeout=None)
    async def work(name: str, seconds: int) -> None:
        ran.append(name)
        await asyncio.sleep(seconds)

    async with travel(ms, at(11, 50)) as t:
        await work.enqueue("long", 20 * 60)
        await ms.schedule("s", work, at=[at(11, 55)], args=("windowed", 1), window=Window("09:00-12:00"))
        await t.advance("1h")
        assert ran == ["long"]
        (run,) = await t.runs("s")
        assert (run.state, run.reason, run.ended_at) == ("skipped", "outside_time_window", instant_ms(at(12, 10)))
        await check_ledger(t)


async def test_job_time_window_outside_occurrences_are_consumed_skipped_and_reported_as_outside_time_window(
    ms: Mainspring, log: Log
) -> None:
    async with travel(ms, START) as t:
        await ms.schedule("s", "note", every="1h", window=Window("10:00-12:00"), max_runs=6)
        await t.advance("2d")
        assert log == [at(10), at(11)]
        book = await check_ledger(t)
        assert (book.planned, book.skipped) == (6, {"outside_time_window": 4})  # consumed: they count for max_runs
        assert (await ms.get("s")).reason == "max_runs"


async def test_job_time_window_a_run_just_before_the_opening_is_reported_by_an_event(ms: Mainspring, log: Log) -> None:
    seen: list[RunSkipped] = []
    ms.on_event(RunSkipped, seen.append)
    async with travel(ms, START) as t:
        await ms.schedule("s", "note", at=[at(9, 59, 30)], window=Window("10:00-12:00"))
        await t.advance("3h")
        assert [event.reason for event in seen] == ["outside_time_window"]
        assert log == []
        await check_ledger(t)


# ── SchedulerConfig::timezone is forwarded to RunContext, drives cron evaluation, does not rewrite AtTimes. ──


async def test_timezone_is_forwarded_to_run_context_and_drives_cron_evaluation() -> None:
    ms = Mainspring("memory://", tz="America/New_York")
    seen: list[tuple[ZoneInfo, datetime]] = []

    @ms.task
    async def note(ctx: Context) -> None:
        seen.append((ctx.tz, ctx.fire_time))

    zone = ZoneInfo("America/New_York")
    async with travel(ms, START) as t:
        await ms.schedule("c", note, cron="0 9 * * *")
        await ms.schedule("i", note, every="90m", max_runs=1)
        await t.advance("1d")
        assert seen == [
            (zone, datetime(2026, 1, 5, 4, 30, tzinfo=zone)),
            (zone, datetime(2026, 1, 5, 9, 0, tzinfo=zone)),
        ]
        assert all(fire.tzinfo == zone for _, fire in seen)
        await check_ledger(t)


async def test_timezone_does_not_rewrite_absolute_at_times_timestamps() -> None:
    ms, log = Mainspring("memory://", tz="Asia/Tokyo"), Log()
    log.on(ms)
    times = [at(9), datetime(2026, 1, 5, 12, 0, tzinfo=ZoneInfo("Europe/Berlin"))]
    async with travel(ms, START) as t:
        await ms.schedule("s", "note", at=times)
        await t.advance("1d")
        assert [fire.astimezone(UTC) for fire in log] == [at(9), at(11)]
        await check_ledger(t)


async def test_cron_of_its_own_zone_wins_over_the_schedulers_timezone() -> None:
    ms, log = Mainspring("memory://", tz="Asia/Tokyo"), Log()
    log.on(ms)
    async with travel(ms, START) as t:
        await ms.schedule("s", "note", cron=Cron("0 12 * * *", tz="UTC"))
        await t.advance("1d")
        assert [fire.astimezone(UTC) for fire in log] == [at(12)]
        await check_ledger(t)
