"""Jobs of `mainspring.compat.jobs`, with the API of cloudiful-scheduler: schedule, task, dependencies and policies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, time
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from mainspring import At, Context, Cron, Every, InvalidInput, Window
from mainspring.model.ids import check_name
from mainspring.model.instant import Duration
from mainspring.model.policies import MISSED, OVERLAP, Missed, Overlap, WindowSpec, check_choice

D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a job runs: `Schedule.interval("5m")`, `Schedule.at_times([…])` or `Schedule.cron("0 9 * * *")`.

    Make one by these methods. `kind` is the parameter of `Mainspring.schedule` that takes `value`.
    """

    kind: Literal["every", "at", "cron"]
    value: Any

    @staticmethod
    def interval(every: Duration) -> Schedule:
        """Return a schedule that runs at an interval, the first time one interval after the job is first stored.

        Raises: InvalidInput if `every` is no duration.
        """
        return Schedule("every", Every(every))

    @staticmethod
    def at_times(times: Iterable[datetime]) -> Schedule:
        """Return a schedule that runs at these instants. With an empty list, the job ends at once.

        Raises: InvalidInput for a time without a zone.
        """
        return Schedule("at", At(times))

    @staticmethod
    def cron(expression: str) -> Schedule:
        """Return a schedule by a cron expression, in the zone of `SchedulerConfig`.

        Raises: InvalidInput for a wrong expression.
        """
        Cron(expression)
        return Schedule("cron", expression)


@dataclass(frozen=True, slots=True)
class RunContext:
    """Facts about one run of a job, as `TaskContext.run`."""

    job_id: str
    #: The time for which the run was planned, in the job's zone.
    scheduled_at: datetime
    #: True if the run makes up for a missed fire.
    catch_up: bool
    timezone: ZoneInfo
    #: The id of the run, equal in all of its attempts.
    run_id: str


@dataclass(frozen=True, slots=True)
class TaskContext(Generic[D_co]):
    """What a task's function receives as its one argument: facts about the run, and the job's dependencies."""

    run: RunContext
    deps: D_co


@dataclass(frozen=True, slots=True)
class Task(Generic[D]):
    """The function of a job: `Task.from_async(f)`, `Task.from_sync(f)` or `Task.from_blocking(f)`.

    The function receives a `TaskContext`. A run of the job fails if it raises an exception.
    """

    kind: Literal["async", "sync", "blocking"]
    function: Callable[[TaskContext[D]], Any]

    @staticmethod
    def from_async(function: Callable[[TaskContext[D]], Awaitable[None]]) -> Task[D]:
        """Return a task that runs an `async def` on the handlers' loop."""
        return Task("async", _callable(function))

    @staticmethod
    def from_sync(function: Callable[[TaskContext[D]], None]) -> Task[D]:
        """Return a task that runs a plain function, which must be short, on the handlers' loop."""
        return Task("sync", _callable(function))

    @staticmethod
    def from_blocking(function: Callable[[TaskContext[D]], None]) -> Task[D]:
        """Return a task that runs a plain function in a thread, where it may block or compute."""
        return Task("blocking", _callable(function))


def _callable(function: Any) -> Any:
    """Return `function`. Raises: InvalidInput if it cannot be called."""
    if not callable(function):
        raise InvalidInput("task", f"{function!r} is not a function", "Give a function of one TaskContext")
    return function


class TimeWindowSegment(NamedTuple):
    """A part of the day, from its start (included) to its end (excluded)."""

    start: time
    end: time


@dataclass(frozen=True, slots=True)
class JobTimeWindow:
    """When the runs of a job may start: on these weekdays, in these parts of the day. Other fires are skipped."""

    #: Local weekdays, such as ("Mon", "Tue"). Empty: every day.
    weekdays: tuple[str, ...] = ()
    #: Parts of the day, in local time. Empty: the whole day.
    segments: tuple[TimeWindowSegment, ...] = ()
    #: None: the zone of `SchedulerConfig`.
    timezone: str | None = None

    def spec(self, fallback: str) -> WindowSpec:
        """Return this window for Mainspring's option `window`. `fallback` is the zone of a window without its own.

        Raises: InvalidInput for a wrong weekday, part of the day or zone.
        """
        return Window(*self.segments, weekdays=tuple(self.weekdays), tz=self.timezone or fallback)


@dataclass(frozen=True)
class Job(Generic[D]):
    """A task with a schedule, an id, dependencies and policies: `Job("refresh", Schedule.interval(5), deps, task)`.

    Raises: InvalidInput, which names the field, for a value that is not acceptable.
    """

    #: The name of the job's schedule in the store: a job with the id of an earlier one continues it.
    job_id: str
    schedule: Schedule
    #: Any value; the task's function receives it. It is not stored.
    deps: D
    task: Task[D]
    #: The job ends after this number of fires. None: no limit.
    max_runs: int | None = None
    #: What becomes of fires that were missed, for example while no process ran the job.
    missed_run_policy: Missed = "catch_up_once"
    #: What becomes of a fire while a run of the job is open.
    overlap_policy: Overlap = "forbid"
    #: Fires outside this window are skipped. None: there is no window.
    time_window: JobTimeWindow | None = None

    def __post_init__(self) -> None:
        check_name(self.job_id, field="job_id")
        for field, value, kind in (("schedule", self.schedule, Schedule), ("task", self.task, Task)):
            if not isinstance(value, kind):
                raise InvalidInput(field, f"{value!r} is not a {kind.__name__}", f"Make one with {kind.__name__}.…(…)")
        check_choice(self.missed_run_policy, MISSED, field="missed_run_policy")
        check_choice(self.overlap_policy, OVERLAP, field="overlap_policy")
        if self.max_runs is not None and (type(self.max_runs) is not int or self.max_runs < 0):
            fix = "Use a whole number of at least 0, which ends the job at once, or None for no limit"
            raise InvalidInput("max_runs", f"{self.max_runs!r} is not a number of runs", fix)
        if self.time_window is not None:
            self.time_window.spec("UTC")

    @staticmethod
    def without_deps(job_id: str, schedule: Schedule, task: Task[None]) -> Job[None]:
        """Return a job without dependencies: the task's function receives None as `deps`."""
        return Job(job_id, schedule, None, task)

    def with_max_runs(self, max_runs: int) -> Job[D]:
        """Return a copy of the job with a maximum of fires, those of earlier processes included. 0 ends it at once."""
        return replace(self, max_runs=max_runs)

    def with_missed_run_policy(self, policy: Missed) -> Job[D]:
        """Return a copy of the job with a policy for missed fires, for example of the time when no process ran it."""
        return replace(self, missed_run_policy=policy)

    def with_overlap_policy(self, policy: Overlap) -> Job[D]:
        """Return a copy of the job with a policy for fires that are due while a run of the job is open."""
        return replace(self, overlap_policy=policy)

    def with_time_window(self, window: JobTimeWindow) -> Job[D]:
        """Return a copy of the job with a time window. Fires outside it are skipped, but count for `max_runs`."""
        return replace(self, time_window=window)

    def context(self, ctx: Context) -> TaskContext[D]:
        """Return what the task's function receives for one run: facts about the run from `ctx`, and the job's deps."""
        return TaskContext(RunContext(self.job_id, ctx.fire_time, ctx.catch_up, ctx.tz, ctx.run_id), self.deps)
