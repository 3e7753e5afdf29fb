"""API of scheduler-rs, source 000: schedule_once, schedule_recurring, schedule_delayed, cancel, on_event.

A task is a function of the app with its arguments. A task that runs once is a run, and has the run's id; a recurring
task is a schedule, and has the schedule's id.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from mainspring import Mainspring, Schedule, UnknownRun, UnknownSchedule, UnknownTask
from mainspring.app.task import BaseTask
from mainspring.compat.event_handlers import EventHandler, Listener
from mainspring.compat.task_events import (
    LoggingHandler,
    TaskCancelled,
    TaskCompleted,
    TaskEvent,
    TaskFailed,
    TaskRetrying,
    TaskScheduled,
    TaskStarted,
    subscribe,
)
from mainspring.model.errors import InvalidInput, suggest_nearest
from mainspring.model.instant import Duration, instant_ms

__all__ = [
    "EventHandler",
    "LoggingHandler",
    "Scheduler",
    "TaskCancelled",
    "TaskCompleted",
    "TaskEvent",
    "TaskFailed",
    "TaskRetrying",
    "TaskScheduled",
    "TaskStarted",
]

P = ParamSpec("P")
E = TypeVar("E", bound=TaskEvent)


class Scheduler:
    """Source 000's methods on a `Mainspring`; storage, workers and intervals are the app's settings."""

    def __init__(self, app: Mainspring) -> None:
        self.app = app

    # ── scheduling ─────────────────────────────────────────────────────────

    async def schedule_once(self, task: BaseTask[P, Any], at: datetime, *args: P.args, **kwargs: P.kwargs) -> str:
        """Enqueue a task with its arguments for the instant `at`, and return the run's id.

        Raises: InvalidInput if `at` lies in the past; UnknownTask; WrongArguments.
        """
        when = instant_ms(at, field="at")
        if when < self.app.clock.now():
            raise InvalidInput(
                "at", f"{at.isoformat()} lies in the past", "Give a later time, or use schedule_immediate"
            )
        return (await self._known(task).using(at=at).enqueue(*args, **kwargs)).id

    async def schedule_delayed(self, task: BaseTask[P, Any], delay: Duration, *args: P.args, **kwargs: P.kwargs) -> str:
        """Enqueue a task with its arguments, due after a delay, and return the run's id."""
        return (await self._known(task).using(delay=delay).enqueue(*args, **kwargs)).id

    async def schedule_immediate(self, task: BaseTask[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Enqueue a task with its arguments, due at once, and return the run's id."""
        return (await self._known(task).using(delay=0).enqueue(*args, **kwargs)).id

    async def schedule_recurring(self, task: BaseTask[P, Any], cron: str, *args: P.args, **kwargs: P.kwargs) -> str:
        """Create a schedule that runs a task with its arguments by a cron expression, and return the schedule's id.

        The schedule's name is made of task, expression and arguments. A call with equal ones returns the schedule that
        exists, so a program can repeat the call at every start.
        """
        known = self._known(task)
        payload = known.new_run(args, kwargs).event.body
        name = " ".join(part for part in (known.name, str(cron), payload) if part)
        made: Schedule = await self.app.schedule(name, known, cron=cron, args=args, kwargs=dict(kwargs))
        return made.id

    def _known(self, task: BaseTask[P, Any]) -> BaseTask[P, Any]:
        """Return the task unchanged if it is a task of this app. Raises: UnknownTask, with the nearest name."""
        given: object = task
        if isinstance(given, BaseTask) and given.app is self.app:
            return task
        name = str(getattr(given, "name", getattr(given, "__name__", given)))
        fix = suggest_nearest(name, self.app.tasks) or "Register the function with @ms.task."
        raise UnknownTask(f"task: {name!r} is not a task of this app. {fix}")

    # ── cancelling ─────────────────────────────────────────────────────────

    async def cancel(self, task_id: str, *, reason: str = "cancelled") -> None:
        """Cancel the run, or delete the schedule, with the id `task_id`: no run of it starts any more.

        Runs that are running are asked to stop. A second call has no effect. Raises: UnknownTask if there is neither.
        """
        try:
            await self.app.cancel(str(task_id), reason=reason)
            return
        except UnknownRun:
            pass
        try:
            schedule = await self.app.get(str(task_id))
        except UnknownSchedule:
            raise UnknownTask(f"task_id: nothing was scheduled under {task_id!r}") from None
        if schedule.state != "deleted":
            await self.app.delete(schedule.id, reason=reason)
        for run in await self.app.runs(schedule=schedule.id, state="running"):
            await self.app.cancel(run.id, reason=reason)

    # ── events ─────────────────────────────────────────────────────────────

    def on_event(self, event: type[E], handler: Listener[E]) -> None:
        """Call a handler with each event of a type that this process commits: `on_event(TaskFailed, AlertHandler())`.

        `TaskEvent` stands for all types. Raises: InvalidInput if `event` is no such type, or `handler` no function or
        object with `handle`.
        """
        subscribe(self.app, event, handler)

    # ── running ────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Plan schedules and run tasks until SIGTERM or SIGINT."""
        await self.app.run_async()

    def shutdown(self) -> None:
        """Claim no more runs, let running ones finish, and return from `run`. Thread: any."""
        self.app.stop()
