"""API of cloudiful-scheduler, source 003: run one job until its schedule ends, and return a report of it.

A job is a schedule whose name is the job's id: its state is the schedule's row, and its history is in the event log.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

from msgspec import Struct

from mainspring import Context, Event, InvalidInput, LoggingHandler, Mainspring, Retry, State
from mainspring import Schedule as Stored
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

#: How a handle stops its scheduler: running runs are cancelled, or may end.
Stop = Literal["cancel", "shutdown"]

#: Observer that writes every event as a log line.
LogObserver = LoggingHandler

#: Reason for which a job is paused if its handle stops it while the engine runs on for other users of the app.
STOPPED = "stopped by its handle"


class SchedulerConfig(Struct, frozen=True, kw_only=True):
    """Settings that apply to every job of a scheduler."""

    #: Zone of cron expressions, of the times that a task receives, and of time windows without a zone of their own.
    timezone: str = "UTC"
    #: The most runs in a report.
    history_limit: int = 100
    #: What becomes of a job's schedule once it has finished. A job whose schedule was deleted can start anew.
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
    """Stops a scheduler, which then stays stopped: make another one to continue. Thread: any."""

    def __init__(self) -> None:
        #: How the scheduler was stopped; None while it was not.
        self.stopping: Stop | None = None
        self._lock = threading.Lock()
        #: The events to set at the next `wake`, each with its loop.
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def cancel(self) -> None:
        """Stop the scheduler now, and cancel the runs of its jobs that this process executes."""
        self._stop("cancel")

    def shutdown(self) -> None:
        """Stop the scheduler: start no more runs, and let running ones end."""
        self._stop("shutdown")

    def _stop(self, how: Stop) -> None:
        """Note how to stop, and wake every waiting `run`. A cancel overrides a shutdown, not the reverse."""
        with self._lock:
            self.stopping = how if self.stopping is None or how == "cancel" else self.stopping
        self.wake()

    def wake(self) -> None:
        """Wake every `Scheduler.run` that waits, so that it looks at the state of its job again."""
        with self._lock:
            for event, loop in self._waiting.items():
                loop.call_soon_threadsafe(event.set)

    @contextlib.contextmanager
    def waker(self) -> Iterator[asyncio.Event]:
        """Yield an event of the running loop that each `wake` sets while the block runs."""
        event = asyncio.Event()
        with self._lock:
            self._waiting[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            with self._lock:
                del self._waiting[event]


class _Slot:
    """The functions to register as a job's task: they call `job`, which is the newest job with this id."""

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
        self.running.add(ctx.run_id)
        try:
            yield
        finally:
            self.running.discard(ctx.run_id)


class Scheduler:
    """Runs jobs on a `Mainspring`, which stores their state; an app whose engine runs already is used as it is.

    `observer` is called with every event that this process commits, also with those of other work of the app.
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
        """Return the handle that stops this scheduler; each call returns the same one."""
        return self._handle

    async def run(self, job: Job[Any]) -> SchedulerReport:
        """Run a job until its schedule ends, the handle stops this scheduler, or the app stops; return its report.

        A job whose id is in the store continues from its stored state; if its definition differs, the schedule gets a
        new revision. Unless other code runs the engine, `run` starts it, and stops and closes the app at the end.
        """
        slot = self._slot(job)
        async with contextlib.AsyncExitStack() as stack:
            cancelling = asyncio.ensure_future(self._cancel_on_request(slot))
            stack.callback(cancelling.cancel)
            alone = await stack.enter_async_context(self.app.sharing())
            schedule = await self._store(job)
            self._ids.add(schedule.id)
            await self._until(lambda: self._is_over(schedule.id))
            if self._handle.stopping is not None and not alone():
                await self._stop_job(schedule, slot)
        report = await report_of(self.app, schedule.id, self.config.history_limit)
        if not self.app.is_running:
            await self.app.close()
        return report

    # ── the job's schedule ─────────────────────────────────────────────────

    def _slot(self, job: Job[Any]) -> _Slot:
        """Return the slot of the job's id, which now calls this job; a new one is registered with the app as a task.

        Raises: InvalidInput if a job with this id ran here in a thread and this one does not, or the reverse.
        """
        known = self.app.tasks.get(job.job_id)
        slot = getattr(known.function, "__self__", None) if known is not None else None
        if not isinstance(slot, _Slot):
            slot = _Slot(job)
            function = slot.in_thread if job.task.kind == "blocking" else slot.on_loop
            self.app.task(name=job.job_id, retry=Retry(max_attempts=1), timeout=None)(function)
        elif (slot.job.task.kind == "blocking") != (job.task.kind == "blocking"):
            raise InvalidInput("task", f"job {job.job_id!r} ran here as {slot.job.task.kind}", "Use another job id")
        slot.job = job
        return slot

    async def _store(self, job: Job[Any]) -> Stored:
        """Create or replace the job's schedule and return it; resume it if a handle had stopped it."""
        config = self.config
        when: dict[str, Any] = {job.schedule.kind: job.schedule.value}
        schedule = await self.app.schedule(
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
        if schedule.state == "paused" and schedule.reason == STOPPED:
            return await self.app.resume(schedule.id)
        return schedule

    async def _stop_job(self, schedule: Stored, slot: _Slot) -> None:
        """Stop a job on an engine that other code uses, too: pause it, cancel its waiting runs, wait for running ones.

        Waited for are the runs in this process. An engine that only this job uses drains when `run` ends its use.
        """
        if (await self.app.get(schedule.id)).state == "active":
            await self.app.pause(schedule.id, reason=STOPPED)
        for run in await self.app.runs(schedule=schedule.id, state="waiting", limit=10_000):
            await self.app.cancel(run.id, reason=STOPPED)
        seen: set[str] = set()
        await self._until(lambda: self._is_quiet(slot, seen), stoppable=False)

    async def _cancel_on_request(self, slot: _Slot) -> None:
        """Once the handle's `cancel` is called, cancel the job's runs in this process. Returns only if cancelled."""
        cancelled: set[str] = set()
        with self._handle.waker() as woken:
            while True:
                if self._handle.stopping == "cancel":
                    for run_id in slot.running - cancelled:
                        await self.app.cancel(run_id, reason=STOPPED)
                        cancelled.add(run_id)
                await woken.wait()
                woken.clear()

    # ── waiting ────────────────────────────────────────────────────────────

    async def _is_over(self, schedule_id: str) -> bool:
        """Return True if the schedule is finished or deleted and no run of it is open."""
        ended = (await self.app.get(schedule_id)).state in ("finished", "deleted")
        return ended and not await self.app.runs(schedule=schedule_id, state=OPEN, limit=1)

    async def _is_quiet(self, slot: _Slot, seen: set[str]) -> bool:
        """Return True if none of the job's runs in `seen` is running according to the store.

        Before, the runs that this process executes now are added to `seen`. Why: a run leaves `slot.running` before its
        outcome is stored.
        """
        seen |= slot.running
        return all([(await self.app.find_by_id(run_id)).state is not State.RUNNING for run_id in seen])

    async def _until(self, done: Callable[[], Awaitable[bool]], *, stoppable: bool = True) -> None:
        """Wait until `done` returns True, the app stops or, if `stoppable`, the handle stops the scheduler.

        `done` is called after events of the scheduler's jobs that this process commits, and every poll interval, since
        other processes commit events, too.
        """
        with self._handle.waker() as woken:
            while self.app.is_running and not (stoppable and self._handle.stopping) and not await done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.app.settings.poll / 1000):
                        await woken.wait()
                woken.clear()

    def _on_event(self, event: Event) -> None:
        """Wake the waiting `run` calls if an event concerns a job of this scheduler."""
        if event.schedule_id in self._ids:
            self._handle.wake()
