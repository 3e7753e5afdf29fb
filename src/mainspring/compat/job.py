"""Jobs of cloudiful-scheduler, source 003: schedule, task, dependencies and policies."""

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
    """When a job runs: `Schedule.interval(5)`, `Schedule.at_times([…])` or `Schedule.cron("…")`.

    `kind` is the name of the parameter of `Mainspring.schedule` that takes `value`.
    """

    kind: Literal["every", "at", "cron"]
    value: Any

    @staticmethod
    def interval(every: Duration) -> Schedule:
        """Return a schedule that runs at an interval, the first time one interval from now."""
        return Schedule("every", Every(every))

    @staticmethod
    def at_times(times: Iterable[datetime]) -> Schedule:
        """Return a schedule that runs at these instants; with an empty list, the job ends at once."""
        return Schedule("at", At(times))

    @staticmethod
    def cron(expression: str) -> Schedule:
        """Return a schedule by a cron expression of five fields, in the scheduler's zone. Raises: InvalidInput."""
        Cron(expression)
        return Schedule("cron", expression)


@dataclass(frozen=True, slots=True)
class RunContext:
    """The fire that a task executes."""

    job_id: str
    #: The fire time, in the job's zone.
    scheduled_at: datetime
    #: True if the run makes up for a missed fire.
    catch_up: bool
    timezone: ZoneInfo
    #: Equal in all attempts of the run.
    run_id: str


@dataclass(frozen=True, slots=True)
class TaskContext(Generic[D_co]):
    """Argument of a task's function: the fire that it executes, and the job's dependencies."""

    run: RunContext
    deps: D_co


@dataclass(frozen=True, slots=True)
class Task(Generic[D]):
    """The function of a job; an exception means failure."""

    kind: Literal["async", "sync", "blocking"]
    function: Callable[[TaskContext[D]], Any]

    @staticmethod
    def from_async(function: Callable[[TaskContext[D]], Awaitable[None]]) -> Task[D]:
        """Return a task that runs a coroutine function on the loop that runs the job."""
        return Task("async", _callable(function))

    @staticmethod
    def from_sync(function: Callable[[TaskContext[D]], None]) -> Task[D]:
        """Return a task that runs a short plain function on the loop that runs the job."""
        return Task("sync", _callable(function))

    @staticmethod
    def from_blocking(function: Callable[[TaskContext[D]], None]) -> Task[D]:
        """Return a task that runs a plain function in a thread, so that it may block or compute."""
        return Task("blocking", _callable(function))


def _callable(function: Any) -> Any:
    if not callable(function):
        raise InvalidInput("task", f"{function!r} is not a function", "Give a function of one TaskContext")
    return function


class TimeWindowSegment(NamedTuple):
    """A part of the day, from its start (included) to its end (excluded)."""

    start: time
    end: time


@dataclass(frozen=True, slots=True)
class JobTimeWindow:
    """When a job may start: local weekdays ("Mon", …) and parts of the day; empty means any."""

    weekdays: tuple[str, ...] = ()
    segments: tuple[TimeWindowSegment, ...] = ()
    timezone: str | None = None

    def spec(self, fallback: str) -> WindowSpec:
        """Return this window as Mainspring's `WindowSpec`, in its own time zone, or in `fallback`, the scheduler's."""
        return Window(*self.segments, weekdays=tuple(self.weekdays), tz=self.timezone or fallback)


@dataclass(frozen=True)
class Job(Generic[D]):
    """A task with a schedule, an id, dependencies and policies."""

    job_id: str
    schedule: Schedule
    #: Any value; the task's function receives it. It is not stored.
    deps: D
    task: Task[D]
    #: The job ends after this number of fires. None: no limit.
    max_runs: int | None = None
    missed_run_policy: Missed = "catch_up_once"
    overlap_policy: Overlap = "forbid"
    time_window: JobTimeWindow | None = None

    def __post_init__(self) -> None:
        check_name(self.job_id, field="job_id")
        for field, value, kind in (("schedule", self.schedule, Schedule), ("task", self.task, Task)):
            if not isinstance(value, kind):
                raise InvalidInput(field, f"{value!r} is no {kind.__name__}", f"Make one with {kind.__name__}.…(…)")
        check_choice(self.missed_run_policy, MISSED, field="missed_run_policy")
        check_choice(self.overlap_policy, OVERLAP, field="overlap_policy")
        if self.max_runs is not None and (type(self.max_runs) is not int or self.max_runs < 0):
            raise InvalidInput("max_runs", f"{self.max_runs!r} is not a whole number of at least 0", "0 runs nothing")
        if self.time_window is not None:
            self.time_window.spec("UTC")

    @staticmethod
    def without_deps(job_id: str, schedule: Schedule, task: Task[None]) -> Job[None]:
        """Return a job without dependencies."""
        return Job(job_id, schedule, None, task)

    def with_max_runs(self, max_runs: int) -> Job[D]:
        """Return the job with a maximum of fires in all, also those of earlier processes; 0 ends it at once."""
        return replace(self, max_runs=max_runs)

    def with_missed_run_policy(self, policy: Missed) -> Job[D]:
        """Return the job with a policy for missed fires, for example those that were due while no instance ran."""
        return replace(self, missed_run_policy=policy)

    def with_overlap_policy(self, policy: Overlap) -> Job[D]:
        """Return the job with a policy for fires whose time comes while a run of the job is open."""
        return replace(self, overlap_policy=policy)

    def with_time_window(self, window: JobTimeWindow) -> Job[D]:
        """Return the job with a time window; fires outside of it are skipped and count as fires."""
        return replace(self, time_window=window)

    def context(self, ctx: Context) -> TaskContext[D]:
        """Return the argument of this job's task for the run whose context is `ctx`."""
        return TaskContext(RunContext(self.job_id, ctx.fire_time, ctx.catch_up, ctx.tz, ctx.run_id), self.deps)
