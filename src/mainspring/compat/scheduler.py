"""The door of source 000: schedule_once, schedule_recurring, schedule_delayed, cancel, on_event.

A task is a function of the app with its arguments. What runs once is a run, and its id is the run's id; what recurs is
a schedule, and its id is the schedule's id.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from mainspring import Mainspring, Schedule, UnknownRun, UnknownSchedule, UnknownTask
from mainspring.compat.listening import EventHandler, Listener
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
from mainspring.model.errors import InvalidInput, nearest
from mainspring.model.instant import Duration, instant_ms
from mainspring.task import BaseTask

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
    """Source 000's verbs on a `Mainspring`; storage, workers and intervals are the app's own settings."""

    def __init__(self, app: Mainspring) -> None:
        self.app = app

    # ── scheduling ─────────────────────────────────────────────────────────

    async def schedule_once(self, task: BaseTask[P, Any], at: datetime, *args: P.args, **kwargs: P.kwargs) -> str:
        """Run a task at an instant that is still to come; the id of the task."""
        when = instant_ms(at, field="at")
        if when < self.app.clock.now():
            raise InvalidInput(
                "at", f"{at.isoformat()} lies in the past", "Give a later time, or use schedule_immediate"
            )
        return (await self._known(task).using(at=at).enqueue(*args, **kwargs)).id

    async def schedule_delayed(self, task: BaseTask[P, Any], delay: Duration, *args: P.args, **kwargs: P.kwargs) -> str:
        """Run a task after a while; the id of the task."""
        return (await self._known(task).using(delay=delay).enqueue(*args, **kwargs)).id

    async def schedule_immediate(self, task: BaseTask[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Run a task as soon as possible; the id of the task."""
        return (await self._known(task).using(delay=0).enqueue(*args, **kwargs)).id

    async def schedule_recurring(self, task: BaseTask[P, Any], cron: str, *args: P.args, **kwargs: P.kwargs) -> str:
        """Run a task at the times of a cron expression; the id of the task.

        The same task, expression and arguments again are the same schedule: a program may say so at every start.
        """
        known = self._known(task)
        payload = known.new_run(args, kwargs).event.body
        name = " ".join(part for part in (known.name, str(cron), payload) if part)
        made: Schedule = await self.app.schedule(name, known, cron=cron, args=args, kwargs=dict(kwargs))
        return made.id

    def _known(self, task: BaseTask[P, Any]) -> BaseTask[P, Any]:
        given: object = task
        if isinstance(given, BaseTask) and given.app is self.app:
            return task
        name = str(getattr(given, "name", getattr(given, "__name__", given)))
        fix = nearest(name, self.app.tasks) or "Register the function with @ms.task."
        raise UnknownTask(f"task: {name!r} is not a task of this app. {fix}")

    # ── cancelling ─────────────────────────────────────────────────────────

    async def cancel(self, task_id: str, *, reason: str = "cancelled") -> None:
        """Nothing more of this task will start; what runs of it is asked to stop."""
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
        """Hand every event of a type that this process commits to a handler: `on_event(TaskFailed, AlertHandler())`."""
        subscribe(self.app, event, handler)

    # ── running ────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Plan and work until SIGTERM or SIGINT."""
        await self.app.run_async()

    def shutdown(self) -> None:
        """Take nothing more, let what runs finish, and return from `run`; from any thread."""
        self.app.stop()
