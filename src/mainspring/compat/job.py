"""Source 003's words for what a job is: when, what, with which dependencies, under which policies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, time
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from mainspring import At, Context, Cron, Every, InvalidInput, Window
from mainspring.model.ids import check_name
from mainspring.model.instant import Duration
from mainspring.model.policies import MISSED, OVERLAP, Missed, Overlap, WindowSpec, choice

D = TypeVar("D")
D_co = TypeVar("D_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a job is run: `Schedule.interval(5)`, `Schedule.at_times([…])` or `Schedule.cron("…")`."""

    kind: Literal["every", "at", "cron"]
    value: Any

    @staticmethod
    def interval(every: Duration) -> Schedule:
        """The first run one interval from now."""
        return Schedule("every", Every(every))

    @staticmethod
    def at_times(times: Iterable[datetime]) -> Schedule:
        """At these instants; an empty list is valid and ends at once."""
        return Schedule("at", At(times))

    @staticmethod
    def cron(expression: str) -> Schedule:
        """Five fields, read in the scheduler's zone; a wrong one is refused here."""
        Cron(expression)
        return Schedule("cron", expression)


@dataclass(frozen=True, slots=True)
class RunContext:
    """Which occurrence this is; `run_id` is the same for every attempt at it."""

    job_id: str
    scheduled_at: datetime
    catch_up: bool
    timezone: ZoneInfo
    run_id: str


@dataclass(frozen=True, slots=True)
class TaskContext(Generic[D_co]):
    """What a task is given: the occurrence and the job's dependencies."""

    run: RunContext
    deps: D_co


@dataclass(frozen=True, slots=True)
class Task(Generic[D]):
    """What a job does; it fails by raising."""

    kind: Literal["async", "sync", "blocking"]
    function: Callable[[TaskContext[D]], Any]

    @staticmethod
    def from_async(function: Callable[[TaskContext[D]], Awaitable[None]]) -> Task[D]:
        """A coroutine function, on the loop that runs the job."""
        return Task("async", _callable(function))

    @staticmethod
    def from_sync(function: Callable[[TaskContext[D]], None]) -> Task[D]:
        """Light synchronous work, on the same loop."""
        return Task("sync", _callable(function))

    @staticmethod
    def from_blocking(function: Callable[[TaskContext[D]], None]) -> Task[D]:
        """Work that blocks or computes, in a thread."""
        return Task("blocking", _callable(function))


def _callable(function: Any) -> Any:
    if not callable(function):
        raise InvalidInput("task", f"{function!r} is not a function", "Give a function of one TaskContext")
    return function


class TimeWindowSegment(NamedTuple):
    """A stretch of the day; holds its start, not its end."""

    start: time
    end: time


@dataclass(frozen=True, slots=True)
class JobTimeWindow:
    """When a job may begin: local weekdays ("Mon", …) and segments; none of either means any."""

    weekdays: tuple[str, ...] = ()
    segments: tuple[TimeWindowSegment, ...] = ()
    timezone: str | None = None

    def spec(self, fallback: str) -> WindowSpec:
        """Our own window; without a zone of its own, the scheduler's."""
        return Window(*self.segments, weekdays=tuple(self.weekdays), tz=self.timezone or fallback)


@dataclass(frozen=True)
class Job(Generic[D]):
    """A task on a schedule under an id, with its dependencies and policies."""

    job_id: str
    schedule: Schedule
    deps: D
    task: Task[D]
    max_runs: int | None = None
    missed_run_policy: Missed = "catch_up_once"
    overlap_policy: Overlap = "forbid"
    time_window: JobTimeWindow | None = None

    def __post_init__(self) -> None:
        check_name(self.job_id, field="job_id")
        for field, value, kind in (("schedule", self.schedule, Schedule), ("task", self.task, Task)):
            if not isinstance(value, kind):
                raise InvalidInput(field, f"{value!r} is no {kind.__name__}", f"Make one with {kind.__name__}.…(…)")
        choice(self.missed_run_policy, MISSED, field="missed_run_policy")
        choice(self.overlap_policy, OVERLAP, field="overlap_policy")
        if self.max_runs is not None and (type(self.max_runs) is not int or self.max_runs < 0):
            raise InvalidInput("max_runs", f"{self.max_runs!r} is not a whole number of at least 0", "0 runs nothing")
        if self.time_window is not None:
            self.time_window.spec("UTC")

    @staticmethod
    def without_deps(job_id: str, schedule: Schedule, task: Task[None]) -> Job[None]:
        """A job that needs nothing."""
        return Job(job_id, schedule, None, task)

    def with_max_runs(self, max_runs: int) -> Job[D]:
        """So many fires in all; 0 ends at once."""
        return replace(self, max_runs=max_runs)

    def with_missed_run_policy(self, policy: Missed) -> Job[D]:
        """What to do about fires that nobody was there for."""
        return replace(self, missed_run_policy=policy)

    def with_overlap_policy(self, policy: Overlap) -> Job[D]:
        """What to do about a fire while a run is active."""
        return replace(self, overlap_policy=policy)

    def with_time_window(self, window: JobTimeWindow) -> Job[D]:
        """Begin only inside the window; what falls outside is consumed and skipped."""
        return replace(self, time_window=window)

    def context(self, ctx: Context) -> TaskContext[D]:
        """What the task of this job is given for a run."""
        return TaskContext(RunContext(self.job_id, ctx.fire_time, ctx.catch_up, ctx.tz, ctx.run_id), self.deps)
