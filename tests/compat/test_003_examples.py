"""Source 003 (cloudiful-scheduler) through its door: every example of the document, in its order."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from mainspring import Event, Mainspring
from mainspring.compat.jobs import (
    Job,
    JobTimeWindow,
    LogObserver,
    Schedule,
    Scheduler,
    SchedulerConfig,
    Task,
    TaskContext,
    TimeWindowSegment,
)
from tests.compat.door_support import START, during, virtual
from tests.ledger_checks import check_ledger_of

SHANGHAI = ZoneInfo("Asia/Shanghai")


@pytest.fixture
def store() -> Mainspring:
    return Mainspring("memory://", lease_ttl="1h")


def seconds(n: float) -> datetime:
    return START + timedelta(seconds=n)


async def nothing(_: TaskContext[None]) -> None: ...


async def test_example_async_task_without_dependencies(store: Mainspring) -> None:
    ran: list[datetime] = []

    async def refresh(context: TaskContext[None]) -> None:
        ran.append(context.run.scheduled_at)

    scheduler = Scheduler(store)
    job = Job.without_deps("refresh-cache", Schedule.interval(timedelta(seconds=5)), Task.from_async(refresh))
    async with virtual(store) as t:
        report = await during(t, scheduler.run(job.with_max_runs(1)))
        assert len(report.history) == 1
        assert ran == [seconds(5)]
        assert not store.is_running
        await check_ledger_of(store)


async def test_example_observe_runtime_events(store: Mainspring, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []
    scheduler = Scheduler(store, SchedulerConfig(), observer=seen.append)
    Scheduler(store, observer=LogObserver())
    job = Job.without_deps("observer-demo", Schedule.interval("5s"), Task.from_async(nothing)).with_max_runs(1)
    with caplog.at_level(logging.INFO, "mainspring.events"):
        async with virtual(store) as t:
            await during(t, scheduler.run(job))
    kinds = [type(event).__name__ for event in seen if event.schedule_id is not None]
    assert kinds == ["ScheduleCreated", "RunScheduled", "ScheduleFinished", "RunStarted", "RunSucceeded"]
    logged = [record.message.split()[0] for record in caplog.records if record.name == "mainspring.events"]
    assert set(kinds) <= set(logged)


async def test_example_cron_schedule(store: Mainspring) -> None:
    ran: list[datetime] = []

    async def check(context: TaskContext[None]) -> None:
        ran.append(context.run.scheduled_at)

    job = Job.without_deps("market-open-check", Schedule.cron("*/5 9-15 * * Mon-Fri"), Task.from_async(check))
    async with virtual(store) as t:
        report = await during(t, Scheduler(store).run(job.with_max_runs(1)))
    assert ran == [datetime(2026, 3, 2, 9, 0, tzinfo=ZoneInfo("UTC"))]
    assert len(report.history) == 1


@pytest.mark.parametrize(
    ("begin", "ran", "reason"),
    [
        ("2026-03-02T02:00:00+00:00", 1, None),  # Monday 10:00 in Shanghai
        ("2026-03-02T04:30:00+00:00", 0, "outside_time_window"),  # 12:30, between the segments
        ("2026-03-01T02:00:00+00:00", 0, "outside_time_window"),  # Sunday
        ("2026-03-02T03:59:57+00:00", 0, "outside_time_window"),  # the window closes 3 s later, the run is due in 5
    ],
    ids=["inside", "between segments", "weekend", "closing"],
)
async def test_example_job_execution_window(store: Mainspring, begin: str, ran: int, reason: str | None) -> None:
    window = JobTimeWindow(
        timezone="Asia/Shanghai",
        weekdays=("Mon", "Tue", "Wed", "Thu", "Fri"),
        segments=(TimeWindowSegment(time(9), time(12)), TimeWindowSegment(time(13), time(18))),
    )
    async with virtual(store, datetime.fromisoformat(begin)) as t:
        soon = Schedule.at_times([t.now.astimezone(SHANGHAI) + timedelta(seconds=5)])
        job = Job.without_deps("windowed-job", soon, Task.from_async(nothing)).with_time_window(window)
        report = await during(t, Scheduler(store).run(job))
        assert (len(report.history), report.last_skip_reason) == (ran, reason)
        assert report.state.trigger_count == 1  # consumed either way
        await check_ledger_of(store)


async def test_example_task_with_run_context(store: Mainspring, capsys: pytest.CaptureFixture[str]) -> None:
    async def refresh(context: TaskContext[None]) -> None:
        print(f"scheduled for {context.run.scheduled_at}")

    async with virtual(store) as t:
        now = t.now.astimezone(SHANGHAI)
        times = Schedule.at_times([now + timedelta(seconds=5), now + timedelta(seconds=10)])
        job = (
            Job.without_deps("refresh-a-shares", times, Task.from_async(refresh))
            .with_missed_run_policy("catch_up_once")
            .with_overlap_policy("forbid")
        )
        report = await during(t, Scheduler(store, SchedulerConfig(timezone="Asia/Shanghai")).run(job))
    assert capsys.readouterr().out.splitlines() == [
        "scheduled for 2026-03-02 16:00:05+08:00",
        "scheduled for 2026-03-02 16:00:10+08:00",
    ]
    assert (report.state.job_id, report.state.trigger_count, report.state.next_run_at) == ("refresh-a-shares", 2, None)
    assert (report.state.last_run_at, report.state.last_success_at) == (seconds(10), seconds(10))
    assert [(run.scheduled_at, run.status, run.catch_up) for run in report.history] == [
        (seconds(5), "success", False),
        (seconds(10), "success", False),
    ]


@dataclass
class RefreshDeps:
    market: str


async def test_example_injected_dependencies(store: Mainspring) -> None:
    deps = RefreshDeps(market="A-share")
    seen: list[RefreshDeps] = []

    async def refresh(context: TaskContext[RefreshDeps]) -> None:
        seen.append(context.deps)

    scheduler = Scheduler(store)
    async with virtual(store) as t:
        empty = Job("refresh-market", Schedule.at_times([]), deps, Task.from_async(refresh))
        report = await during(t, scheduler.run(empty))
        assert (report.history, seen) == ([], [])
        job = Job("refresh-other", Schedule.interval(5), deps, Task.from_async(refresh)).with_max_runs(1)
        await during(t, scheduler.run(job))
    assert len(seen) == 1
    assert seen[0] is deps  # the very object: never copied, never stored


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_example_recover_state_across_restarts(kind: str, tmp_path: Path) -> None:
    """Interrupted before its time, the job is run from the stored next run by another scheduler."""
    shared = Mainspring("memory://", lease_ttl="1h")

    def store() -> Mainspring:
        return shared if kind == "memory" else Mainspring(f"sqlite:///{tmp_path}/state.db", lease_ttl="1h")

    def job() -> Job[None]:
        return Job.without_deps("resume-me", Schedule.at_times([seconds(30)]), Task.from_async(nothing))

    first = store()
    async with virtual(first) as t:
        scheduler = Scheduler(first)
        running = asyncio.ensure_future(scheduler.run(job()))
        await t.advance("10s")
        scheduler.handle().cancel()
        report = await during(t, running, "1s")  # type: ignore[arg-type]  # a future will do
        assert (report.state.next_run_at, report.history) == (seconds(30), [])
    again = store()
    async with virtual(again, seconds(20)) as t:
        report = await during(t, Scheduler(again).run(job()), "1m")
        assert [run.scheduled_at for run in report.history] == [seconds(30)]
        assert report.state.next_run_at is None
        await check_ledger_of(again)


async def test_example_recover_state_with_another_list_of_times_is_a_new_revision(store: Mainspring) -> None:
    """The document's program as it stands: the second list is later than the first, so it is owed as well."""
    async with virtual(store) as t:
        for n in (1, 2):
            later = Schedule.at_times([t.now.astimezone(SHANGHAI) + timedelta(seconds=30)])
            job = Job.without_deps("resume-me", later, Task.from_async(nothing))
            report = await during(t, Scheduler(store).run(job), "1m")
            assert (len(report.history), report.state.trigger_count) == (n, n)
        await check_ledger_of(store)


async def test_example_persistent_state_next_run(tmp_path: Path) -> None:
    """The document keeps it in Valkey; here it is the app's own store, in one file."""
    store = Mainspring(f"sqlite:///{tmp_path}/state.db", lease_ttl="1h")
    async with virtual(store) as t:
        job = Job.without_deps("refresh-cache", Schedule.interval(5), Task.from_async(nothing)).with_max_runs(1)
        report = await during(t, Scheduler(store).run(job))
        assert report.state.next_run_at is None
        assert report.state.trigger_count == 1


async def test_example_execution_guard_one_run_for_each_occurrence(tmp_path: Path) -> None:
    """Two instances run the same job on one store, on the real clock: each occurrence is run once, by one of them."""
    ran: list[tuple[str, datetime]] = []

    def instance(name: str) -> tuple[Mainspring, Job[str]]:
        def work(context: TaskContext[str]) -> None:
            ran.append((context.deps, context.run.scheduled_at))

        job = Job("guarded", Schedule.interval("100ms"), name, Task.from_sync(work)).with_max_runs(6)
        return Mainspring(f"sqlite:///{tmp_path}/state.db", poll_interval="50ms"), job.with_overlap_policy("queue_all")

    pairs = [instance("a"), instance("b")]
    reports = await asyncio.wait_for(asyncio.gather(*(Scheduler(app).run(job) for app, job in pairs)), 50)
    fires = sorted(at for _, at in ran)
    assert len(fires) == len(set(fires)) == 6
    for report in reports:
        assert report.state.trigger_count == 6
        assert [run.scheduled_at for run in report.history] == fires
    for app, _ in pairs:
        await app.close()


# ── Core concepts: the kinds of task ──


async def test_from_async_from_sync_and_from_blocking_run_where_they_should(store: Mainspring) -> None:
    """On the real clock and real threads."""
    where: dict[str, int] = {}

    async def on_loop(context: TaskContext[str]) -> None:
        await asyncio.sleep(0)
        where[context.deps] = threading.get_ident()

    def plain(context: TaskContext[str]) -> None:
        where[context.deps] = threading.get_ident()

    tasks = {"async": Task.from_async(on_loop), "sync": Task.from_sync(plain), "blocking": Task.from_blocking(plain)}
    for name, task in tasks.items():
        job = Job(name, Schedule.interval("10ms"), name, task).with_max_runs(1)
        report = await asyncio.wait_for(Scheduler(store).run(job), 30)
        assert [run.status for run in report.history] == ["success"]
    here = threading.get_ident()
    assert (where["async"], where["sync"]) == (here, here)
    assert where["blocking"] != here
    await store.close()


async def test_a_failing_task_is_recorded_and_the_schedule_goes_on(store: Mainspring) -> None:
    async def sometimes(context: TaskContext[list[str]]) -> None:
        if context.deps:
            raise ValueError(context.deps.pop())

    job = Job("flaky", Schedule.interval(60), ["no luck"], Task.from_async(sometimes))
    async with virtual(store) as t:
        report = await during(t, Scheduler(store).run(job.with_max_runs(2)))
        assert [(run.status, run.error) for run in report.history] == [
            ("failed", "ValueError: no luck"),  # once: this door retries nothing
            ("success", None),
        ]
        assert (report.state.last_error, report.state.last_success_at) == (None, seconds(120))
        await check_ledger_of(store)
