"""Offer Azoth Scheduler's API on a `Mainspring`: task handlers return events, which event handlers receive.

A task is a schedule whose name is the caller's task id. A `TaskHandler` executes the runs of tasks. For each run that
succeeds it returns a `TaskEvent`, which is stored in the log with the run (docs/sources.md).
"""

from __future__ import annotations

import contextlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from mainspring import Context, InvalidInput, Mainspring, Retry, RetryPolicy, RunSucceeded, State
from mainspring.app.internals import create_with_any_name, queries_of
from mainspring.app.task import BaseTask
from mainspring.compat.event_handlers import EventHandler, Listener, as_function
from mainspring.model.events import RunFailed, RunRetrying
from mainspring.model.ids import check_name
from mainspring.model.instant import Duration, instant_ms, to_datetime
from mainspring.model.schedule import Schedule

__all__ = [
    "EventHandler",
    "InvalidTask",
    "ScheduledTask",
    "Scheduler",
    "TaskEvent",
    "TaskExecuted",
    "TaskFilter",
    "TaskHandler",
]

P_contra = TypeVar("P_contra", contravariant=True)

#: The delay after the first failure of a run. It doubles with each further failure, up to `LONGEST_BACKOFF`.
FIRST_BACKOFF = "1m"
LONGEST_BACKOFF = "30d"


#: States that a run reaches only after a claim. The newest run of a task in one of them shows the task's failures.
BEGUN = (State.RUNNING, State.RETRYING, State.SUCCEEDED, State.FAILED, State.LOST)


class InvalidTask(InvalidInput):
    """The handler's `validate` refused the payload of a task. Nothing was stored."""


class TaskEvent(Struct, frozen=True, tag="task_event", tag_field="kind"):
    """What `TaskHandler.execute` returns: an event with a type and a payload, both chosen by the handler.

    For example `TaskEvent("email_sent", address)`. It is stored in the log with the run. The event handlers that were
    registered with `with_event_handler` for this `event_type`, or for all types, receive it at most once, in the
    process that stored the result. `payload`: any value that can be stored as JSON.
    """

    event_type: str
    payload: Any = None


class TaskHandler(ABC, Generic[P_contra]):
    """Base class of handlers: `class EmailHandler(TaskHandler[Email])`, with `task_type` and `execute`.

    The payload of a task is stored as JSON, and converted to the type parameter (here `Email`) for the handler.
    """

    #: The name under which tasks name this handler: a subclass sets it.
    task_type: str

    @abstractmethod
    def execute(self, ctx: Context, payload: P_contra) -> TaskEvent | Awaitable[TaskEvent]:
        """Execute one run of a task and return its event. Subclasses define this.

        An `async def` runs on the handlers' loop, a plain `def` in a thread. An exception means failure: the run is
        tried again, until it has had the task's `max_retries` attempts in all.
        """

    def validate(self, payload: P_contra) -> None:
        """Raise an exception to refuse a payload: `schedule_task` then raises InvalidTask and stores nothing."""


class TaskFilter(Struct, frozen=True, kw_only=True):
    """Selection of tasks for `list_tasks`. A field that is None restricts nothing. Deleted tasks are never listed."""

    #: True: only enabled tasks; False: only those that are disabled or finished.
    enabled: bool | None = None
    task_type: str | None = None


class ScheduledTask(Struct, frozen=True, kw_only=True):
    """A stored task, as `schedule_task`, `get_task` and `list_tasks` return it. It is a schedule named `task_id`."""

    task_id: str
    task_type: str
    #: False if the task is disabled, finished or deleted.
    enabled: bool
    #: The state of the schedule: active, paused, finished or deleted.
    state: str
    #: Why the schedule is not active, for example "retries_exhausted"; None if no reason is stored.
    reason: str | None
    #: None if no run is planned.
    next_run_at: datetime | None
    #: Number of failures of the newest run that is running or will be retried, or that succeeded, failed or was lost.
    retry_count: int
    #: The last error of that run; None if it has not failed.
    last_error: str | None


class TaskExecuted(Struct, frozen=True, kw_only=True):
    """One attempt of a task's run that succeeded or failed, as `history` returns it from the event log."""

    task_id: str
    #: Id of the run, which all of its attempts have in common.
    execution_id: str
    started_at: datetime
    completed_at: datetime
    success: bool
    #: None after a success.
    error: str | None = None
    #: The event that the handler returned; None after a failure.
    event: TaskEvent | None = None


class Scheduler:
    """The scheduler of Azoth Scheduler, on a `Mainspring`: `Scheduler(ms, [EmailHandler()])`.

    Poll interval and concurrency are settings of the `Mainspring`. `default_max_retries` counts all attempts of a run,
    the first included. `default_timeout_secs` is the time that one attempt may take: seconds, or a duration such as
    "5m". Both defaults apply to tasks that set no value of their own. Raises: InvalidInput for a wrong default or
    handler; DuplicateTask.
    """

    def __init__(
        self,
        app: Mainspring,
        handlers: Iterable[TaskHandler[Any]] = (),
        *,
        default_max_retries: int = 3,
        default_timeout_secs: Duration = 300,
    ) -> None:
        self.app = app
        self._handlers: dict[str, TaskHandler[Any]] = {}
        self._retry = retry_policy(default_max_retries, field="default_max_retries")
        self._timeout = default_timeout_secs
        for handler in handlers:
            self.with_task_handler(handler)

    # ── handlers ───────────────────────────────────────────────────────────

    def with_task_handler(self, handler: TaskHandler[Any]) -> Scheduler:
        """Register a handler with the app, as the task named by its `task_type`, and return this scheduler.

        Raises: InvalidInput if it is no `TaskHandler` with a `task_type`; DuplicateTask if the type is registered.
        """
        given: object = handler
        if not isinstance(given, TaskHandler) or not isinstance(getattr(given, "task_type", None), str):
            raise InvalidInput(
                "handler", f"{given!r} is not a TaskHandler with a task_type", 'Set task_type = "…" in its class'
            )
        self.app.task(name=handler.task_type, retry=self._retry, timeout=self._timeout)(_function_of(handler))
        self._handlers[handler.task_type] = handler
        return self

    def with_event_handler(self, handler: Listener[TaskEvent], event_type: str | None = None) -> Scheduler:
        """Register `handler` for the events (`TaskEvent`) of runs that succeed, and return this scheduler.

        `handler` is a function of one event, or an object with a method `handle`. It is called with each event of the
        type `event_type`, None: of any type, at most once, in the process that stored the run's result. If it missed
        events, `result_events` returns them. Raises: InvalidInput if `handler` is neither.
        """
        call = as_function(handler)

        def deliver(ended: RunSucceeded) -> Any:
            event = _event_in(ended.result)
            return call(event) if event is not None and event_type in (None, event.event_type) else None

        self.app.on_event(RunSucceeded, deliver)
        return self

    # ── scheduling ─────────────────────────────────────────────────────────

    async def schedule_task(
        self,
        task_id: str,
        *,
        task_type: str,
        payload: Any = None,
        cron: str | None = None,
        interval: Duration | None = None,
        one_time: datetime | float | None = None,
        immediate: bool = False,
        max_retries: int | None = None,
        timeout_secs: Duration | None = None,
        on_conflict: Literal["replace", "keep", "error"] = "error",
    ) -> ScheduledTask:
        """Store a task, with exactly one of `cron`, `interval`, `one_time` and `immediate` to say when it runs.

        `cron` has 5 or 6 fields. A number as `interval` means seconds, as `one_time` a unix time. `task_type` names the
        handler. `max_retries` counts all attempts of a run, the first included. If the last of them fails, the task is
        paused. Without `max_retries` or `timeout_secs`, the handler's default applies (for a `TaskHandler`: the
        scheduler's). If the id exists with an equal task, nothing changes. If it exists with a different task,
        `on_conflict` "replace" edits that task, "keep" returns it, and "error" raises ScheduleConflict. Also raises:
        InvalidTask if `validate` refuses the payload; InvalidInput for any other wrong argument; UnknownTask.
        """
        check_name(task_id, field="task_id")
        task = self.app.tasks.get(task_type)
        if task is not None:
            self._check(task, task_type, payload)
        when: dict[str, Any] = {
            "cron": cron,
            "every": interval,
            "at": None if one_time is None else self._instant(one_time),
            "delay": 0 if immediate else None,
        }
        if sum(value is not None for value in when.values()) != 1:
            raise InvalidInput(
                "schedule", "exactly one option must say when to run", "Give cron, interval, one_time or immediate"
            )
        made = await create_with_any_name(
            self.app,
            task_id,
            task_type,
            args=(payload,),
            on_conflict=on_conflict,
            on_exhausted="pause",
            retry=None if max_retries is None else retry_policy(max_retries),
            timeout=timeout_secs,
            **when,
        )
        return await self.get_task(made.id)

    def _check(self, task: BaseTask[Any, Any], task_type: str, payload: Any) -> None:
        """Raise WrongArguments if the payload does not have the handler's type, InvalidTask if `validate` refuses it.

        If `task_type` is a task of the app without a `TaskHandler`, there is no `validate` to call.
        """
        body = task.new_run((payload,), {}).bodies[0]
        handler = self._handlers.get(task_type)
        if handler is None:
            return
        try:
            handler.validate(task.signature.decode(body.data)["payload"])
        except InvalidTask:
            raise
        except Exception as error:
            raise InvalidTask("payload", f"{task_type!r} refuses it: {error}") from error

    def _instant(self, one_time: datetime | float) -> datetime:
        """Return an instant, given as datetime or as unix time in seconds, as a datetime in UTC.

        Raises: InvalidInput if it is no such value, or is not in the future.
        """
        at: Any = one_time
        if isinstance(at, int | float) and not isinstance(at, bool):
            try:
                at = to_datetime(round(at * 1000))
            except (OverflowError, ValueError):
                raise InvalidInput("one_time", f"{one_time!r} is not a unix time", "Give seconds since 1970") from None
        if instant_ms(at, field="one_time") <= self.app.clock.now():
            raise InvalidInput("one_time", f"{one_time} lies in the past", "Give a later time, or immediate=True")
        return to_datetime(instant_ms(at))

    # ── managing ───────────────────────────────────────────────────────────

    async def cancel_task(self, task_id: str, reason: str) -> None:
        """Delete the task with this id: no run of it starts any more. The newest 100 running ones are asked to stop.

        `reason` is stored with the deletion and the runs. Raises: UnknownSchedule, with the nearest id.
        """
        schedule = await queries_of(self.app).find_schedule(task_id)
        await self.app.delete(schedule.id, reason=reason)
        for run in await queries_of(self.app).find_runs(schedule=schedule.id, state="running"):
            await self.app.cancel(run.id, reason=reason)

    async def get_task(self, task_id: str) -> ScheduledTask:
        """Return the task with this id. Raises: UnknownSchedule, with the nearest id."""
        return await self._read_task(await queries_of(self.app).find_schedule(task_id))

    async def list_tasks(self, which: TaskFilter | None = None) -> list[ScheduledTask]:
        """Return the tasks that the filter `which` selects, oldest first; None: all tasks that are not deleted."""
        wanted = which or TaskFilter()
        found: list[ScheduledTask] = []
        page: list[Schedule] = []
        while True:
            after = page[-1].id if page else None
            page = await queries_of(self.app).find_schedules(enabled=wanted.enabled, after=after)
            if not page:
                return found
            fitting = [one for one in page if wanted.task_type in (None, one.spec.task)]
            found += [await self._read_task(one) for one in fitting]

    async def _read_task(self, schedule: Schedule) -> ScheduledTask:
        """Return the task that a schedule stores, with the failures of its newest claimed run, read from the store."""
        begun = await queries_of(self.app).find_runs(schedule=schedule.id, state=BEGUN, limit=1)
        failed = begun[0] if begun and begun[0].failures else None
        return ScheduledTask(
            task_id=schedule.name,
            task_type=schedule.spec.task,
            enabled=schedule.enabled,
            state=schedule.state,
            reason=schedule.reason,
            next_run_at=None if schedule.next_at is None else to_datetime(schedule.next_at),
            retry_count=0 if failed is None else failed.failures,
            last_error=None if failed is None else failed.error,
        )

    # ── what happened ──────────────────────────────────────────────────────

    async def history(self, task_id: str, *, limit: int = 1_000) -> list[TaskExecuted]:
        """Return the first `limit` attempts of a task's runs that succeeded or failed, oldest first.

        Raises: UnknownSchedule, with the nearest id.
        """
        schedule = await self.app.get(task_id)
        events = await self.app.events(schedule=schedule.id, types=["TaskExecuted"], limit=limit)
        return [
            TaskExecuted(
                task_id=schedule.name,
                execution_id=event.run_id or "",
                started_at=to_datetime(event.began_at if event.began_at is not None else event.at),
                completed_at=to_datetime(event.at),
                success=isinstance(event, RunSucceeded),
                error=None if isinstance(event, RunSucceeded) else event.error,
                event=_event_in(event.result) if isinstance(event, RunSucceeded) else None,
            )
            for event in events
            if isinstance(event, RunSucceeded | RunFailed | RunRetrying)
        ]

    async def result_events(self, *, since: datetime | None = None, limit: int = 1_000) -> list[TaskEvent]:
        """Return the events of runs from the log, oldest first, for event handlers that missed them.

        They are the events of the first `limit` runs, of any task, that succeeded since the instant `since`; None: from
        the beginning of the log.
        """
        ended = await self.app.events(types=[RunSucceeded], since=since, limit=limit)
        found = (_event_in(one.result) for one in ended if isinstance(one, RunSucceeded))
        return [event for event in found if event is not None]

    # ── running ────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Plan schedules and run tasks until SIGTERM, SIGINT or a call of `shutdown`."""
        await self.app.run_async()

    def shutdown(self) -> None:
        """Make `run` end: it claims no more runs, waits for running ones, and returns. Thread: any.

        Attempts that have not ended within the app's `shutdown_timeout` are handed back.
        """
        self.app.stop()


def retry_policy(max_retries: int, *, field: str = "max_retries") -> RetryPolicy:
    """Return a policy with delays of 1, 2, 4… minutes, and `max_retries` attempts in all, at least one.

    Why: Azoth Scheduler counts a failure before it compares the count, so its retries include the first attempt.
    `field` names the parameter in errors. Raises: InvalidInput for anything but a whole number from 0.
    """
    if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
        fix = "Use a whole number from 0. It counts all executions, the first included"
        raise InvalidInput(field, f"{max_retries!r} is not a whole number of at least 0", fix)
    return Retry(max_attempts=max(1, max_retries), initial=FIRST_BACKOFF, base=2, max_delay=LONGEST_BACKOFF, jitter=0)


def _function_of(handler: TaskHandler[Any]) -> Any:
    """Return the function to register with the app as the task of a handler.

    The function calls `execute` with the payload, converted to the handler's type. It raises a TypeError, which fails
    the attempt, if `execute` does not return a `TaskEvent`.
    """

    def checked(event: object) -> TaskEvent:
        if not isinstance(event, TaskEvent):
            raise TypeError(f"{type(handler).__name__}.execute returned {type(event).__name__}, not a TaskEvent")
        return event

    if inspect.iscoroutinefunction(handler.execute):

        async def on_loop(ctx: Context, payload: Any) -> TaskEvent:
            return checked(await handler.execute(ctx, payload))  # type: ignore[misc]  # a coroutine function's answer

        function: Any = on_loop
    else:

        def in_thread(ctx: Context, payload: Any) -> TaskEvent:
            return checked(handler.execute(ctx, payload))

        function = in_thread
    function.__annotations__["payload"] = _payload_type(handler)
    return function


def _payload_type(handler: TaskHandler[Any]) -> Any:
    """Return the payload type of a handler: the parameter of `TaskHandler[…]`, else the annotation in `execute`.

    Return `Any` if neither can be read.
    """
    for cls in type(handler).__mro__:
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is TaskHandler and not isinstance(get_args(base)[0], TypeVar):
                return get_args(base)[0]
    with contextlib.suppress(Exception):  # a name that exists only for type checkers
        hints = get_type_hints(handler.execute)
        return hints.get(list(inspect.signature(handler.execute).parameters)[1], Any)
    return Any


def _event_in(result: str | None) -> TaskEvent | None:
    """Return the `TaskEvent` in the stored result of a run; None if it has none, such as results of other tasks."""
    value = None if result is None else msgspec.json.decode(result)
    if not isinstance(value, dict) or value.get("kind") != "task_event":
        return None
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(value, TaskEvent)
    return None
