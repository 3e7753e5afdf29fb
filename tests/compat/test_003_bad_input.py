"""Source 003 through its door: bad input is refused where it is written, and nothing is stored."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.compat.jobs import (
    Job,
    JobTimeWindow,
    Schedule,
    Scheduler,
    SchedulerConfig,
    Task,
    TaskContext,
)
from mainspring.model.errors import (
    DuplicateTask,
    EmptyName,
    InvalidCron,
    InvalidDuration,
    InvalidInput,
    NaiveDatetime,
    UnknownZone,
)
from tests.compat.door_support import during, virtual


@pytest.fixture
def store() -> Mainspring:
    return Mainspring("memory://", lease_ttl="1h")


HOUR = Schedule.interval("1h")


async def nothing(_: TaskContext[None]) -> None: ...


NOTE: Task[None] = Task.from_async(nothing)

BAD: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("interval", lambda: Schedule.interval(-5), InvalidDuration, "interval: -5 is negative"),
    ("no interval", lambda: Schedule.interval(0), InvalidDuration, "interval: 0 is too short"),
    ("cron", lambda: Schedule.cron("*/5 9-15 * * Mon-Fry"), InvalidCron, "Fry"),
    ("times", lambda: Schedule.at_times([datetime(2030, 1, 1)]), NaiveDatetime, "times: .* has no time zone"),
    ("no times", lambda: Schedule.at_times("soon"), InvalidInput, "times: 'soon' is not a list"),  # type: ignore[arg-type]
    ("id", lambda: Job.without_deps("", HOUR, NOTE), EmptyName, "job_id: '' is empty"),
    ("schedule", lambda: Job.without_deps("x", "1h", NOTE), InvalidInput, "schedule: '1h' is not a Schedule"),  # type: ignore[arg-type]
    ("task", lambda: Job.without_deps("x", HOUR, print), InvalidInput, "task: .* is not a Task"),  # type: ignore[arg-type]
    ("function", lambda: Task.from_sync(7), InvalidInput, "task: 7 is not a function"),  # type: ignore[arg-type]
    (
        "missed",
        lambda: Job.without_deps("x", HOUR, NOTE).with_missed_run_policy("catchup_once"),  # type: ignore[arg-type]
        InvalidInput,
        "missed_run_policy: .*Did you mean 'catch_up_once'",
    ),
    (
        "overlap",
        lambda: Job.without_deps("x", HOUR, NOTE).with_overlap_policy("forbit"),  # type: ignore[arg-type]
        InvalidInput,
        "overlap_policy: .*Did you mean 'forbid'",
    ),
    ("max_runs", lambda: Job.without_deps("x", HOUR, NOTE).with_max_runs(-1), InvalidInput, "max_runs: -1 is not"),
    (
        "weekday",
        lambda: Job.without_deps("x", HOUR, NOTE).with_time_window(JobTimeWindow(weekdays=("Mo",))),
        InvalidInput,
        "window.weekdays: 'mo' is not one of",
    ),
    (
        "window zone",
        lambda: Job.without_deps("x", HOUR, NOTE).with_time_window(JobTimeWindow(timezone="Asia/Shangai")),
        UnknownZone,
        "Did you mean 'Asia/Shanghai'",
    ),
    ("zone", lambda: SchedulerConfig(timezone="Berlin"), UnknownZone, "timezone: 'Berlin' is not a time zone"),
    ("terminal", lambda: SchedulerConfig(terminal_state_policy="drop"), InvalidInput, "terminal_state_policy: 'drop'"),  # type: ignore[arg-type]
    ("history", lambda: SchedulerConfig(history_limit=-1), InvalidInput, "history_limit: -1 is out of range"),
]


@pytest.mark.parametrize(("make", "error", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_refused_where_it_is_written(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


async def test_a_job_id_that_is_a_task_of_the_app_is_refused(
    store: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    @store.task
    async def taken() -> None: ...

    with caplog.at_level(logging.ERROR):
        async with virtual(store) as t:
            with pytest.raises(DuplicateTask, match="a task called 'taken' is registered already"):
                await Scheduler(store).run(Job.without_deps("taken", HOUR, NOTE))
            job = Job.without_deps("job", Schedule.at_times([]), NOTE)
            await during(t, Scheduler(store).run(job), "0s")
            with pytest.raises(InvalidInput, match="task: job 'job' was run as async in this process"):
                blocking = Task.from_blocking(lambda context: None)
                await Scheduler(store).run(Job.without_deps("job", HOUR, blocking))
            assert [schedule.name for schedule in await store.schedules()] == ["job"]
