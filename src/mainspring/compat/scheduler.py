"""Offer scheduler-rs's API on a `Mainspring`: `schedule_*`, `cancel`, `on_event`, `run`, `shutdown` (docs/sources.md).

A task is a function registered with the app. `schedule_recurring` makes a schedule and returns its id; the other
`schedule_*` methods make one run and return the run's id.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from mainspring import Mainspring, UnknownRun, UnknownSchedule, UnknownTask
from mainspring.app.internals import create_with_any_name, queries_of
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
    """The scheduler of scheduler-rs, on a `Mainspring`: `await Scheduler(ms).schedule_delayed(send, "10m", "acme")`.

    Storage, the number of workers and the intervals are settings of the `Mainspring`.
    """

    def __init__(self, app: Mainspring) -> None:
        self.app = app

    # ── scheduling ─────────────────────────────────────────────────────────

    async def schedule_once(self, task: BaseTask[P, Any], at: datetime, *args: P.args, **kwargs: P.kwargs) -> str:
        """Store a run of a task with the arguments `args` and `kwargs`, due at `at`, and return the run's id.

        Raises: InvalidInput if `at` lies in the past or has no time zone; UnknownTask; WrongArguments.
        """
        when = instant_ms(at, field="at")
        if when < self.app.clock.now():
            raise InvalidInput(
                "at", f"{at.isoformat()} lies in the past", "Give a later time, or use schedule_immediate"
            )
        return (await self._known(task).using(at=at).enqueue(*args, **kwargs)).id

    async def schedule_delayed(self, task: BaseTask[P, Any], delay: Duration, *args: P.args, **kwargs: P.kwargs) -> str:
        """Store a run of a task with the arguments `args` and `kwargs`, due after `delay`, and return the run's id.

        Raises: UnknownTask; WrongArguments; InvalidInput for a wrong delay.
        """
        return (await self._known(task).using(delay=delay).enqueue(*args, **kwargs)).id

    async def schedule_immediate(self, task: BaseTask[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Store a run of a task with the arguments `args` and `kwargs`, due now, and return the run's id.

        Raises: UnknownTask; WrongArguments.
        """
        return (await self._known(task).using(delay=0).enqueue(*args, **kwargs)).id

    async def schedule_recurring(self, task: BaseTask[P, Any], cron: str, *args: P.args, **kwargs: P.kwargs) -> str:
        """Create a schedule that runs a task with `args` and `kwargs` by a cron expression; return the schedule's id.

        A later call with the same task, expression and arguments returns the id of the stored schedule. So a program
        can repeat the call at every start. Raises: ScheduleConflict if that schedule's definition now differs, for
        example in its zone or queue; UnknownTask; WrongArguments; InvalidInput for a wrong expression.
        """
        known = self._known(task)
        payload = known.new_run(args, kwargs).event.body
        name = " ".join(part for part in (known.name, str(cron), payload) if part)
        made = await create_with_any_name(self.app, name, known, cron=cron, args=args, kwargs=dict(kwargs))
        return made.id

    def _known(self, task: BaseTask[P, Any]) -> BaseTask[P, Any]:
        """Return `task` if it is registered with this app. Raises: UnknownTask, with the nearest name, if not."""
        given: object = task
        if isinstance(given, BaseTask) and given.app is self.app:
            return task
        name = str(getattr(given, "name", getattr(given, "__name__", given)))
        fix = suggest_nearest(name, self.app.tasks) or "Register the function with @ms.task."
        raise UnknownTask(f"task: {name!r} is not a task of this app. {fix}")

    # ── cancelling ─────────────────────────────────────────────────────────

    async def cancel(self, task_id: str, *, reason: str = "cancelled") -> None:
        """Cancel the run with the id `task_id`, or delete the schedule with that id or name.

        A deleted schedule starts no more runs. A running run is asked to stop; if a schedule has more than 100 running
        runs, only the newest 100 are. A second call has no effect. Raises: UnknownTask if there is no such run or
        schedule.
        """
        try:
            await self.app.cancel(str(task_id), reason=reason)
            return
        except UnknownRun:
            pass
        try:
            schedule = await queries_of(self.app).find_schedule(str(task_id))
        except UnknownSchedule:
            raise UnknownTask(f"task_id: nothing was scheduled under {task_id!r}") from None
        if schedule.state != "deleted":
            await self.app.delete(schedule.id, reason=reason)
        for run in await queries_of(self.app).find_runs(schedule=schedule.id, state="running"):
            await self.app.cancel(run.id, reason=reason)

    # ── events ─────────────────────────────────────────────────────────────

    def on_event(self, event: type[E], handler: Listener[E]) -> None:
        """Call `handler` with each event of the type `event` that this process commits, while `run` is under way.

        Example: `scheduler.on_event(TaskFailed, alert)`. The type `TaskEvent` stands for all types. `handler` is a
        function of one event, or an object with a method `handle`; it may be async. Raises: InvalidInput if `event`
        is no type of event, or `handler` is neither.
        """
        subscribe(self.app, event, handler)

    # ── running ────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Plan schedules and run tasks until SIGTERM, SIGINT or a call of `shutdown`."""
        await self.app.run_async()

    def shutdown(self) -> None:
        """Make `run` end: it claims no more runs, waits for running ones, and returns. Thread: any.

        Attempts that have not ended within the app's `shutdown_timeout` are handed back.
        """
        self.app.stop()
