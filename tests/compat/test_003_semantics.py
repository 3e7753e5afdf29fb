"""Source 003 through its door: the bullets of "Scheduling semantics", the handle, the report.

What each policy does is shown on our own API in tests/engine/test_semantics_003.py; here is that the door passes it on.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring import Mainspring
from mainspring.compat.jobs import (
    Job,
    JobTimeWindow,
    Schedule,
    Scheduler,
    SchedulerConfig,
    SchedulerReport,
    Task,
    TaskContext,
    TimeWindowSegment,
)
from mainspring.testing import travel
from tests.compat.door_support import START, during, virtual
from tests.ledger_checks import check_ledger_of


@pytest.fixture
def store() -> Mainspring:
    return Mainspring("memory://", lease_ttl="1h")


def minutes(n: float) -> datetime:
    return START + timedelta(minutes=n)


class Log:
    """A task that notes the occurrences it was run for, each taking a while."""

    def __init__(self, takes: float = 0) -> None:
        self.fires: list[datetime] = []
        self.catch_ups: list[bool] = []
        self.most = self.now = 0
        self.takes = takes

    async def note(self, context: TaskContext[Any]) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        self.fires.append(context.run.scheduled_at.astimezone(UTC))
        self.catch_ups.append(context.run.catch_up)
        try:
            await asyncio.sleep(self.takes)
        finally:
            self.now -= 1

    def job(self, schedule: Schedule, job_id: str = "job") -> Job[None]:
        return Job.without_deps(job_id, schedule, Task.from_async(self.note))


HOURLY = {
    "interval": lambda: Schedule.interval("1h"),
    "at_times": lambda: Schedule.at_times([minutes(60 * n) for n in range(1, 9)]),
    "cron": lambda: Schedule.cron("0 * * * *"),
}


async def test_at_times_never_executes_immediately_on_startup(store: Mainspring) -> None:
    log = Log()
    job = log.job(Schedule.at_times([minutes(-60), START, minutes(60)]))
    async with virtual(store) as t:
        running = asyncio.ensure_future(Scheduler(store).run(job))
        await t.advance("59m")
        assert log.fires == []
        await t.advance("1m")
        assert running.result().state.last_run_at == minutes(60)
        assert log.fires == [minutes(60)]


async def test_at_times_empty_is_a_valid_no_op_and_exits_without_running(
    store: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    async with virtual(store) as t:
        report = await during(t, Scheduler(store).run(Log().job(Schedule.at_times([]))), "0s")
        assert (report.history, report.state.trigger_count) == ([], 0)


async def test_interval_schedules_the_first_run_at_now_plus_interval(store: Mainspring) -> None:
    log = Log()
    async with virtual(store, minutes(0.5)) as t:
        await during(t, Scheduler(store).run(log.job(Schedule.interval("10m")).with_max_runs(2)))
        assert log.fires == [minutes(10.5), minutes(20.5)]


async def test_cron_and_run_context_follow_the_configured_timezone_and_at_times_are_not_rewritten(
    store: Mainspring,
) -> None:
    zone = ZoneInfo("America/New_York")
    seen: list[tuple[datetime, ZoneInfo]] = []

    async def note(context: TaskContext[None]) -> None:
        seen.append((context.run.scheduled_at, context.run.timezone))

    async with virtual(store) as t:
        scheduler = Scheduler(store, SchedulerConfig(timezone="America/New_York"))
        for name, schedule in (("c", Schedule.cron("0 9 * * *")), ("a", Schedule.at_times([minutes(60 * 36)]))):
            job = Job.without_deps(name, schedule, Task.from_async(note)).with_max_runs(1)
            await during(t, scheduler.run(job))
    assert seen == [(datetime(2026, 3, 2, 9, tzinfo=zone), zone), (minutes(60 * 36), zone)]


@pytest.mark.parametrize("kind", list(HOURLY))
@pytest.mark.parametrize("max_runs", [0, 2])
async def test_max_runs_applies_to_every_kind_and_0_exits_immediately(
    store: Mainspring, kind: str, max_runs: int
) -> None:
    log = Log()
    async with virtual(store) as t:
        job = log.job(HOURLY[kind]()).with_max_runs(max_runs)
        report = await during(t, Scheduler(store).run(job), "0s" if max_runs == 0 else "2h")
        assert log.fires == [minutes(60), minutes(120)][:max_runs]
        assert report.state.trigger_count == max_runs
        await check_ledger_of(store)


@pytest.mark.parametrize(
    ("policy", "after", "skip"),
    [
        ("skip", [(6, False)], "missed"),
        ("catch_up_once", [(5, True), (6, False)], "missed"),
        ("replay_all", [(2, True), (3, True), (4, True), (5, True), (6, False)], None),
    ],
)
async def test_missed_run_policies_after_a_downtime(
    tmp_path: Path, policy: Any, after: list[tuple[int, bool]], skip: str | None
) -> None:
    """Hourly, stopped at 1:30, started again at 5:30: skip drops, catch_up_once runs one, replay_all runs each."""

    async def session(start: datetime, by: str) -> tuple[Log, SchedulerReport]:
        log, store = Log(), Mainspring(f"sqlite:///{tmp_path}/x.db", lease_ttl="1h")
        async with virtual(store, start) as t:
            scheduler = Scheduler(store)
            job = log.job(Schedule.interval("1h")).with_missed_run_policy(policy)
            running = asyncio.ensure_future(scheduler.run(job))
            await t.advance(by)
            scheduler.handle().shutdown()
            await t.advance("1s")
            await check_ledger_of(store)
            return log, running.result()

    first, _ = await session(START, "90m")
    assert first.fires == [minutes(60)]
    second, report = await session(minutes(330), "35m")
    assert list(zip(second.fires, second.catch_ups, strict=True)) == [(minutes(60 * n), late) for n, late in after]
    assert report.last_skip_reason == skip
    assert len(report.history) == 1 + len(after)  # the ledger knows the earlier session, too


@pytest.mark.parametrize(
    ("policy", "fires", "most"),
    [("forbid", [1, 4], 1), ("queue_one", [1, 2, 4], 1), ("allow_parallel", [1, 2, 3, 4, 5], 3)],
)
async def test_overlap_policies(store: Mainspring, policy: Any, fires: list[int], most: int) -> None:
    log = Log(takes=150)
    async with virtual(store) as t:
        job = log.job(Schedule.interval("1m")).with_overlap_policy(policy).with_max_runs(5)
        report = await during(t, Scheduler(store).run(job))
        assert log.fires == [minutes(n) for n in fires]
        assert log.most == most
        assert report.last_skip_reason == (None if policy == "allow_parallel" else "overlap")
        await check_ledger_of(store)


async def test_time_window_outside_occurrences_are_consumed_skipped_and_reported(store: Mainspring) -> None:
    log = Log()
    window = JobTimeWindow(segments=(TimeWindowSegment(time(10), time(12)),))
    async with virtual(store) as t:
        job = log.job(Schedule.interval("1h")).with_time_window(window).with_max_runs(6)
        report = await during(t, Scheduler(store).run(job), "2d")  # what is outside is counted when the next opens
        assert log.fires == [minutes(120), minutes(180)]  # 10:00 and 11:00
        assert (report.state.trigger_count, report.last_skip_reason) == (6, "outside_time_window")
        await check_ledger_of(store)


async def test_time_window_without_a_zone_of_its_own_takes_the_schedulers(store: Mainspring) -> None:
    log = Log()
    window = JobTimeWindow(segments=(TimeWindowSegment(time(17), time(18)),))
    async with virtual(store) as t:
        scheduler = Scheduler(store, SchedulerConfig(timezone="Asia/Shanghai"))
        await during(t, scheduler.run(log.job(Schedule.interval("1h")).with_time_window(window).with_max_runs(1)))
    assert log.fires == [minutes(60)]  # 09:00 UTC


# ── state: keyed by job id, terminal policy ──


async def test_state_is_resumed_from_the_stored_next_run_by_job_id(tmp_path: Path) -> None:
    fires: list[list[datetime]] = []
    for start in (START, minutes(95)):
        log, store = Log(), Mainspring(f"sqlite:///{tmp_path}/x.db", lease_ttl="1h")
        async with virtual(store, start) as t:
            scheduler = Scheduler(store)
            running = asyncio.ensure_future(scheduler.run(log.job(Schedule.interval("1h")).with_max_runs(3)))
            await t.advance("90m" if start is START else "1d")
            scheduler.handle().cancel()
            await t.advance("1s")
            report = running.result()
            assert (await store.get("job")).revision == 1
            await check_ledger_of(store)
        fires.append(log.fires)
    assert fires == [[minutes(60)], [minutes(120), minutes(180)]]  # not 95 + 60 minutes; and the count went on
    assert report.state.trigger_count == 3


@pytest.mark.tampers
async def test_corrupted_interval_state_without_a_next_run_is_repaired(tmp_path: Path) -> None:
    log = Log()
    for start, by in ((START, "90m"), (minutes(95), "30m")):
        store = Mainspring(f"sqlite:///{tmp_path}/x.db", lease_ttl="1h")
        async with virtual(store, start) as t:
            scheduler = Scheduler(store)
            running = asyncio.ensure_future(scheduler.run(log.job(Schedule.interval("1h"))))
            await t.advance(by)
            scheduler.handle().cancel()
            await t.advance("1s")
            running.result()
        with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as db, db:
            assert db.execute("UPDATE schedule SET next_at = NULL").rowcount == 1
    assert log.fires == [minutes(60), minutes(120)]


async def test_a_terminal_job_that_is_kept_stays_over(store: Mainspring) -> None:
    async with virtual(store) as t:
        log = Log()
        job = log.job(Schedule.interval("1m")).with_max_runs(1)
        first = await during(t, Scheduler(store).run(job), "1m")
        again = await during(t, Scheduler(store).run(job), "0s")
        assert again == first
        assert len(log.fires) == 1


@pytest.mark.parametrize("kind", list(HOURLY))
async def test_terminal_state_policy_delete_removes_the_state_and_the_job_starts_afresh(
    store: Mainspring, kind: str
) -> None:
    log, config = Log(), SchedulerConfig(terminal_state_policy="delete")
    async with virtual(store) as t:
        job = log.job(HOURLY[kind]()).with_max_runs(1)
        first = await during(t, Scheduler(store, config).run(job), "1h")
        assert [run.scheduled_at for run in first.history] == [minutes(60)]
        assert (first.state.trigger_count, await store.schedules()) == (1, [])
        second = await during(t, Scheduler(store, config).run(job), "1h")
        assert [run.scheduled_at for run in second.history] == [minutes(120)]
        assert second.state.trigger_count == 1
        await check_ledger_of(store)


async def test_terminal_state_policy_delete_waits_for_the_last_run(store: Mainspring) -> None:
    log, config = Log(takes=120), SchedulerConfig(terminal_state_policy="delete")
    async with virtual(store) as t:
        report = await during(t, Scheduler(store, config).run(log.job(HOURLY["interval"]()).with_max_runs(1)))
        assert [(run.status, run.finished_at) for run in report.history] == [("success", minutes(62))]
        assert await store.schedules() == []


async def test_the_history_of_a_report_is_bounded_and_the_newest_stays(store: Mainspring) -> None:
    async with virtual(store) as t:
        for limit, kept in ((3, [8, 9, 10]), (0, []), (100, list(range(1, 11)))):
            scheduler = Scheduler(store, SchedulerConfig(history_limit=limit))
            report = await during(t, scheduler.run(Log().job(Schedule.interval("1m")).with_max_runs(10)), "10m")
            assert [run.scheduled_at for run in report.history] == [minutes(n) for n in kept]
            assert (report.state.trigger_count, report.state.last_run_at) == (10, minutes(10))


# ── the handle ──


Stopping = Callable[[Scheduler], None]
CANCEL: Stopping = lambda scheduler: scheduler.handle().cancel()  # noqa: E731
SHUTDOWN: Stopping = lambda scheduler: scheduler.handle().shutdown()  # noqa: E731


@pytest.mark.parametrize("beside", [False, True], ids=["own engine", "app runs"])
@pytest.mark.parametrize("stop", [CANCEL, SHUTDOWN], ids=["cancel", "shutdown"])
async def test_cancel_and_shutdown_stop_while_waiting(store: Mainspring, stop: Stopping, beside: bool) -> None:
    log = Log()
    async with travel(store, START) if beside else virtual(store) as t:
        scheduler = Scheduler(store)
        running = asyncio.ensure_future(scheduler.run(log.job(Schedule.interval("1h"))))
        await t.advance("90m")
        stop(scheduler)
        await t.settle()
        report = await asyncio.wait_for(running, 0)
        assert [run.scheduled_at for run in report.history] == [minutes(60)]
        await t.advance("1d")
        assert len(log.fires) == 1  # an engine that runs on runs nothing more of it
        assert store.is_running is beside


@pytest.mark.parametrize("beside", [False, True], ids=["own engine", "app runs"])
async def test_shutdown_waits_for_the_current_run_and_starts_nothing_more(store: Mainspring, beside: bool) -> None:
    log = Log(takes=20)
    async with travel(store, START) if beside else virtual(store) as t:
        scheduler = Scheduler(store)
        job = log.job(Schedule.interval("1m")).with_overlap_policy("queue_all")
        running = asyncio.ensure_future(scheduler.run(job))
        await t.advance("65s")
        scheduler.handle().shutdown()
        await t.advance("14s")
        assert not running.done()
        await t.advance("2s")
        assert [(run.status, run.finished_at) for run in running.result().history] == [("success", minutes(80 / 60))]
        await t.advance("1h")
        assert len(log.fires) == 1


@pytest.mark.parametrize("beside", [False, True], ids=["own engine", "app runs"])
async def test_a_shutdown_that_takes_too_long_can_still_be_cancelled(store: Mainspring, beside: bool) -> None:
    log = Log(takes=3000)
    async with travel(store, START) if beside else virtual(store) as t:
        scheduler = Scheduler(store)
        running = asyncio.ensure_future(scheduler.run(log.job(Schedule.interval("1m"))))
        await t.advance("65s")
        scheduler.handle().shutdown()
        await t.advance("10s")
        assert not running.done()
        scheduler.handle().cancel()
        await t.advance("1s")
        assert [run.status for run in running.result().history] == ["cancelled"]
        assert log.now == 0


@pytest.mark.parametrize("beside", [False, True], ids=["own engine", "app runs"])
async def test_cancel_during_a_run_ends_it_as_cancelled(store: Mainspring, beside: bool) -> None:
    log = Log(takes=3000)
    async with travel(store, START) if beside else virtual(store) as t:
        scheduler = Scheduler(store)
        running = asyncio.ensure_future(scheduler.run(log.job(Schedule.interval("1m"))))
        await t.advance("65s")
        scheduler.handle().cancel()
        await t.advance("1s")
        assert [run.status for run in running.result().history] == ["cancelled"]
        assert log.now == 0


async def test_a_job_stopped_beside_a_running_app_is_paused_and_goes_on_when_run_again(store: Mainspring) -> None:
    log = Log()
    async with travel(store, START) as t:
        scheduler = Scheduler(store)
        running = asyncio.ensure_future(scheduler.run(log.job(Schedule.interval("1h"))))
        await t.advance("90m")
        scheduler.handle().shutdown()
        await t.settle()
        await running
        paused = await store.get("job")
        assert (paused.state, paused.reason) == ("paused", "stopped by its handle")
        await t.advance("2h")
        again = asyncio.ensure_future(Scheduler(store).run(log.job(Schedule.interval("1h")).with_max_runs(2)))
        await t.advance("1h")
        assert again.result().state.trigger_count == 2
        assert log.fires == [minutes(60), minutes(240)]
        await check_ledger_of(store)


async def test_a_stopped_scheduler_stays_stopped(store: Mainspring) -> None:
    log, scheduler = Log(), Scheduler(store)
    scheduler.handle().cancel()
    async with virtual(store) as t:
        report = await during(t, scheduler.run(log.job(Schedule.interval("1m"))), "0s")
        assert (log.fires, report.state.next_run_at) == ([], minutes(1))


async def test_the_handle_stops_from_inside_the_task_and_from_a_thread(store: Mainspring) -> None:
    """On the real clock; the task blocks in a thread."""
    scheduler = Scheduler(store)

    def work(context: TaskContext[None]) -> None:
        scheduler.handle().shutdown()

    job = Job.without_deps("job", Schedule.interval("10ms"), Task.from_blocking(work))
    report = await asyncio.wait_for(scheduler.run(job), 30)
    assert "success" in {run.status for run in report.history}
    assert report.state.next_run_at is not None
    await store.close()


async def test_jobs_share_one_engine_and_the_last_one_stops_it(store: Mainspring) -> None:
    logs = [Log(), Log(), Log()]
    async with virtual(store) as t:
        jobs = [log.job(Schedule.interval("1m"), f"job-{n}").with_max_runs(n + 1) for n, log in enumerate(logs)]
        scheduler = Scheduler(store)
        runs = [scheduler.run(jobs[0]), scheduler.run(jobs[1]), Scheduler(store).run(jobs[2])]
        reports = await during(t, asyncio.gather(*runs), "1h")  # type: ignore[arg-type]  # a future will do
        assert [report.state.trigger_count for report in reports] == [1, 2, 3]
        assert not store.is_running


async def test_run_returns_when_the_app_it_runs_beside_stops() -> None:
    """On the real clock."""
    store = Mainspring("memory://", poll_interval="20ms")
    async with store.running():
        running = asyncio.ensure_future(Scheduler(store).run(Log().job(Schedule.interval("1h"))))
        while not await store.schedules():  # noqa: ASYNC110 - until it is stored
            await asyncio.sleep(0.001)
    report = await asyncio.wait_for(running, 30)
    assert report.state.next_run_at is not None
    await store.close()


def test_a_scheduler_may_be_used_on_one_loop_after_another() -> None:
    """On the real clock: what blocking programs do."""
    store = Mainspring("memory://")
    for n in (1, 2):
        job = Job.without_deps("job", Schedule.interval("5ms"), Task.from_sync(lambda context: None))
        report = asyncio.run(Scheduler(store).run(job.with_max_runs(n)))
        assert report.state.trigger_count == n
    asyncio.run(store.close())


def test_jobs_and_schedules_are_values() -> None:
    def job() -> Job[None]:
        return Log.job(log, Schedule.at_times([minutes(1)]))

    log = Log()
    assert job() == job()
    assert job() != job().with_max_runs(1)
    assert Schedule.interval("60s") == Schedule.interval(timedelta(minutes=1)) != Schedule.interval(61)
