"""Offer cloudiful-scheduler's API on a `Mainspring`: run a job until its schedule ends, and return a report of it.

A job is a schedule whose name is the job's id. Its state is the row of the schedule, and its history is in the event
log (docs/sources.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Literal, TypeVar

from msgspec import Struct

from mainspring import Context, Event, InvalidInput, LoggingHandler, Mainspring, Retry, State
from mainspring import Schedule as Stored
from mainspring.app.internals import create_with_any_name, queries_of
from mainspring.compat.job import (
    Job,
    JobTimeWindow,
    RunContext,
    Schedule,
    Task,
    TaskContext,
    TimeWindowSegment,
)
from mainspring.compat.job_report import JobState, RunRecord, SchedulerReport, report_of
from mainspring.model.errors import StoreUnavailable
from mainspring.model.events import RunEvent, ScheduleEvent
from mainspring.model.instant import Duration, duration_ms, load_zone
from mainspring.model.policies import check_choice
from mainspring.model.run import OPEN

__all__ = [
    "Job",
    "JobState",
    "JobTimeWindow",
    "LogObserver",
    "RunContext",
    "RunRecord",
    "Schedule",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerHandle",
    "SchedulerReport",
    "Task",
    "TaskContext",
    "TimeWindowSegment",
]

T = TypeVar("T")

#: A call outside the wait for the end of a job is repeated for up to this many seconds while the store is unavailable.
MAX_OUTAGE_SECONDS = 30.0
#: Seconds between two such calls.
OUTAGE_PAUSE_SECONDS = 0.5

#: How a handle stops its scheduler: "cancel" cancels running runs, "shutdown" lets them end.
Stop = Literal["cancel", "shutdown"]

#: Observer that writes every event as a log line: `Scheduler(ms, observer=LogObserver())`.
LogObserver = LoggingHandler

#: Reason, stored with the schedule and its cancelled runs, if a handle stops a job while the engine runs on for others.
STOPPED_REASON = "stopped by its handle"


class SchedulerConfig(Struct, frozen=True, kw_only=True):
    """Settings that apply to every job of a scheduler. Raises: InvalidInput for a value that is not acceptable."""

    #: Zone of cron expressions, of the times that a task receives, and of time windows without a zone of their own.
    timezone: str = "UTC"
    #: The most runs in a report.
    history_limit: int = 100
    #: What becomes of a job's schedule once it has finished: kept, or deleted, so that the job can begin anew.
    terminal_state_policy: Literal["keep", "delete"] = "keep"
    #: A fire that is planned more than this after its time counts as missed.
    grace: Duration = "1s"

    def __post_init__(self) -> None:
        load_zone(self.timezone, field="timezone")
        check_choice(self.terminal_state_policy, ("keep", "delete"), field="terminal_state_policy")
        duration_ms(self.grace, field="grace")
        limit: object = self.history_limit
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= 10_000:
            raise InvalidInput("history_limit", f"{limit!r} is out of range", "Use a whole number from 0 to 10000")


class SchedulerHandle:
    """Stops a scheduler for good: `scheduler.handle().shutdown()`. To continue, make another scheduler. Thread: any."""

    def __init__(self) -> None:
        #: How the scheduler was stopped; None if it was not stopped.
        self.stopping: Stop | None = None
        self._lock = threading.Lock()
        #: The events to set at the next `wake`, each with its event loop.
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def cancel(self) -> None:
        """Stop the scheduler now, and cancel the runs of its jobs that this process executes."""
        self._stop("cancel")

    def shutdown(self) -> None:
        """Stop the scheduler: start no more runs, and let running ones end."""
        self._stop("shutdown")

    def _stop(self, how: Stop) -> None:
        """Store how to stop, and wake every waiting `Scheduler.run`. "cancel" overrides "shutdown", not the reverse."""
        with self._lock:
            self.stopping = how if self.stopping is None or how == "cancel" else self.stopping
        self.wake()

    def wake(self) -> None:
        """Wake every `Scheduler.run` that waits, so that it checks the state of its job again."""
        with self._lock:
            for event, loop in self._waiting.items():
                loop.call_soon_threadsafe(event.set)

    @contextlib.contextmanager
    def waker(self) -> Iterator[asyncio.Event]:
        """Yield an asyncio event, on which a coroutine of the running loop waits for a change.

        While the block runs, each `wake` sets the event. The coroutine clears it before it waits again.
        """
        event = asyncio.Event()
        with self._lock:
            self._waiting[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            with self._lock:
                del self._waiting[event]


class _Slot:
    """The task of one job id, registered with the app once. Each of its runs executes `job`, the newest job of that id.

    Why not a task for each job: a task name can be registered only once, but `Scheduler.run` may be called again with
    another job of that id.
    """

    def __init__(self, job: Job[Any]) -> None:
        self.job = job
        #: Ids of the runs that this process executes now.
        self.running: set[str] = set()

    async def on_loop(self, ctx: Context) -> None:
        """Execute a run of a job of the kind async or sync. Thread: handlers' loop."""
        with self._track(ctx):
            answer = self.job.task.function(self.job.context(ctx))
            if self.job.task.kind == "async":
                await answer

    def in_thread(self, ctx: Context) -> None:
        """Execute a run of a job of the kind blocking. Thread: one of the handlers' threads."""
        with self._track(ctx):
            self.job.task.function(self.job.context(ctx))

    @contextlib.contextmanager
    def _track(self, ctx: Context) -> Iterator[None]:
        """Keep the run's id in `running` while the block, which executes the run, is under way."""
        self.running.add(ctx.run_id)
        try:
            yield
        finally:
            self.running.discard(ctx.run_id)


class Scheduler:
    """Runs jobs on a `Mainspring`, which stores their state: `report = await Scheduler(ms).run(job)`.

    `observer` is called with every event that this process commits, including events of other work of the app.
    """

    def __init__(
        self,
        app: Mainspring,
        config: SchedulerConfig | None = None,
        *,
        observer: Callable[[Event], Any] | None = None,
    ) -> None:
        self.app = app
        self.config = config or SchedulerConfig()
        self._handle = SchedulerHandle()
        self._ids: set[str] = set()
        app.on_event((ScheduleEvent, RunEvent), self._on_event)
        if observer is not None:
            app.on_event(Event, observer)

    def handle(self) -> SchedulerHandle:
        """Return the handle that stops this scheduler. There is one for each scheduler."""
        return self._handle

    async def run(self, job: Job[Any]) -> SchedulerReport:
        """Run a job until its schedule ends, the handle stops this scheduler, or the app stops; return a report of it.

        If the store has a job of this id, its state and count of fires continue, and the definition of `job` replaces a
        different one. An engine of the app that runs already is used. Otherwise `run` starts the engine, and at the end
        stops it and closes the app. While the store is unavailable, `run` waits until it is back. Raises: InvalidInput;
        DuplicateTask if the id is the name of another task; StoreUnavailable if the store is away at the start or end.
        """
        slot = self._slot(job)
        async with contextlib.AsyncExitStack() as stack:
            cancelling = asyncio.ensure_future(self._cancel_on_request(slot))
            stack.callback(cancelling.cancel)
            alone = await stack.enter_async_context(self.app.sharing())
            schedule = await self._through_outage(lambda: self._store(job))
            self._ids.add(schedule.id)
            await self._until(lambda: self._is_over(schedule.id))
            if self._handle.stopping is not None and not alone():
                await self._through_outage(lambda: self._stop_job(schedule, slot))
        report = await self._through_outage(lambda: report_of(self.app, schedule.id, self.config.history_limit))
        if not self.app.is_running:
            await self.app.close()
        return report

    # ── the job's schedule ─────────────────────────────────────────────────

    def _slot(self, job: Job[Any]) -> _Slot:
        """Return the `_Slot` of the job's id, after setting its `job`, which later runs of that id execute.

        If the id is new, it is registered as a task. Raises: InvalidInput if the id was used here for a job of kind
        "blocking" and `job` is of another kind, or the reverse; DuplicateTask if another task of the app has the id as
        its name.
        """
        known = self.app.tasks.get(job.job_id)
        slot = getattr(known.function, "__self__", None) if known is not None else None
        if not isinstance(slot, _Slot):
            slot = _Slot(job)
            function = slot.in_thread if job.task.kind == "blocking" else slot.on_loop
            self.app.task(name=job.job_id, retry=Retry(max_attempts=1), timeout=None)(function)
        elif (slot.job.task.kind == "blocking") != (job.task.kind == "blocking"):
            problem = f"job {job.job_id!r} was run as {slot.job.task.kind} in this process before, and cannot change"
            raise InvalidInput("task", problem, "Use another id, or restart")
        slot.job = job
        return slot

    async def _store(self, job: Job[Any]) -> Stored:
        """Create or replace the job's schedule and return it. If a handle had paused it, resume it."""
        config = self.config
        when: dict[str, Any] = {job.schedule.kind: job.schedule.value}
        schedule = await create_with_any_name(
            self.app,
            job.job_id,
            job.job_id,
            on_conflict="replace",
            tz=config.timezone,
            missed=job.missed_run_policy,
            overlap=job.overlap_policy,
            grace=config.grace,
            replay_max=10_000,
            replay_age="3650d",
            max_runs=job.max_runs,
            window=None if job.time_window is None else job.time_window.spec(config.timezone),
            terminal=config.terminal_state_policy,
            **when,
        )
        if schedule.state == "paused" and schedule.reason == STOPPED_REASON:
            return await self.app.resume(schedule.id)
        return schedule

    async def _stop_job(self, schedule: Stored, slot: _Slot) -> None:
        """Stop a job on an engine that other code uses, too: pause its schedule and cancel its waiting runs.

        Then wait until the job's runs in this process have ended. An engine that only this job uses needs none of this:
        when `run` stops that engine, the runs may end.
        """
        if (await queries_of(self.app).find_schedule(schedule.id)).state == "active":
            await self.app.pause(schedule.id, reason=STOPPED_REASON)
        for run in await queries_of(self.app).find_runs(schedule=schedule.id, state="waiting", limit=10_000):
            await self.app.cancel(run.id, reason=STOPPED_REASON)
        seen: set[str] = set()
        await self._until(lambda: self._is_quiet(slot, seen), stoppable=False)

    async def _cancel_on_request(self, slot: _Slot) -> None:
        """Wait for the handle's `cancel`, then cancel the job's runs in this process, and those that begin later, too.

        It loops until `run` cancels it. `slot`: the registered task of the job's id.
        """
        cancelled: set[str] = set()
        with self._handle.waker() as woken:
            while True:
                if self._handle.stopping == "cancel":
                    for run_id in slot.running - cancelled:
                        await self._through_outage(functools.partial(self.app.cancel, run_id, reason=STOPPED_REASON))
                        cancelled.add(run_id)
                await woken.wait()
                woken.clear()

    # ── waiting ────────────────────────────────────────────────────────────

    async def _is_over(self, schedule_id: str) -> bool:
        """Return True if the schedule is finished or deleted and no run of it is open."""
        ended = (await queries_of(self.app).find_schedule(schedule_id)).state in ("finished", "deleted")
        return ended and not await queries_of(self.app).find_runs(schedule=schedule_id, state=OPEN, limit=1)

    async def _is_quiet(self, slot: _Slot, seen: set[str]) -> bool:
        """Add the runs that this process executes to `seen`; return True if the store shows none in `seen` as running.

        Why not only `slot.running`: a run leaves it before its outcome is stored.
        """
        seen |= slot.running
        return all([(await queries_of(self.app).find_run(run_id)).state is not State.RUNNING for run_id in seen])

    async def _until(self, done: Callable[[], Awaitable[bool]], *, stoppable: bool = True) -> None:
        """Wait until `done` returns True, the app stops or, if `stoppable`, the handle stops the scheduler.

        `done` is called after each event of the scheduler's jobs that this process commits, and every poll interval,
        because other processes commit events of the jobs, too. An unavailable store cannot tell: then `done` counts as
        False.
        """

        async def is_done() -> bool:
            try:
                return await done()
            except StoreUnavailable:  # the engine logs the outage
                return False

        with self._handle.waker() as woken:
            while self.app.is_running and not (stoppable and self._handle.stopping) and not await is_done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.app.settings.poll / 1000):
                        await woken.wait()
                woken.clear()

    async def _through_outage(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `call` returns. While the store is unavailable, call again after a pause.

        `call` must change nothing more when it is repeated. Raises: StoreUnavailable after `MAX_OUTAGE_SECONDS`.
        """
        clock = self.app.clock
        end = clock.monotonic() + MAX_OUTAGE_SECONDS
        while True:
            try:
                return await call()
            except StoreUnavailable:
                if clock.monotonic() >= end:
                    raise
            await asyncio.sleep(OUTAGE_PAUSE_SECONDS)

    def _on_event(self, event: Event) -> None:
        """Wake the waiting `run` calls if an event concerns a job of this scheduler."""
        if event.schedule_id in self._ids:
            self._handle.wake()
