"""The door of source 001: TaskHandlers that turn a payload into an event, and EventHandlers that get it.

A task is a schedule under the id its caller gave. Its result is a `TaskEvent`, kept in the log with the execution.
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

from mainspring import Context, InvalidInput, Mainspring, Retry, RetryPolicy, RunSucceeded, Schedule, State
from mainspring.compat.listening import EventHandler, Listener, as_function
from mainspring.model.events import RunFailed, RunRetrying
from mainspring.model.ids import check_name
from mainspring.model.instant import Duration, instant_ms, to_datetime
from mainspring.task import BaseTask

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

#: The first wait after a failure; each one after it is twice as long.
FIRST_BACKOFF = "1m"
LONGEST_BACKOFF = "30d"


#: Runs that were tried at least once, so what became of them tells how the task is.
BEGUN = (State.RUNNING, State.RETRYING, State.SUCCEEDED, State.FAILED, State.LOST)


class InvalidTask(InvalidInput):
    """A handler's `validate` refused the payload; nothing was stored."""


class TaskEvent(Struct, frozen=True, tag="task_event", tag_field="kind"):
    """What an execution brought about: handed to the event handlers, and kept in the log."""

    event_type: str
    payload: Any = None


class TaskHandler(ABC, Generic[P_contra]):
    """The work of one task type. The payload is any JSON value, given in the type in the brackets."""

    task_type: str

    @abstractmethod
    def execute(self, ctx: Context, payload: P_contra) -> TaskEvent | Awaitable[TaskEvent]:
        """Do the work; a plain `def` runs in a thread, an `async def` on the loop."""

    def validate(self, payload: P_contra) -> None:
        """Raise to refuse a payload before anything is stored."""


class TaskFilter(Struct, frozen=True, kw_only=True):
    """Which tasks to list; nothing given means all."""

    enabled: bool | None = None
    task_type: str | None = None


class ScheduledTask(Struct, frozen=True, kw_only=True):
    """A task as it is stored. Not enabled: finished, or disabled for the `reason`."""

    task_id: str
    task_type: str
    enabled: bool
    state: str
    reason: str | None
    next_run_at: datetime | None
    retry_count: int
    last_error: str | None


class TaskExecuted(Struct, frozen=True, kw_only=True):
    """One execution, as the log tells it."""

    task_id: str
    execution_id: str
    started_at: datetime
    completed_at: datetime
    success: bool
    error: str | None = None
    event: TaskEvent | None = None


class Scheduler:
    """Source 001's verbs on a `Mainspring`; poll interval and concurrency are the app's own settings."""

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
        """Register the handler of a task type."""
        given: object = handler
        if not isinstance(given, TaskHandler) or not isinstance(getattr(given, "task_type", None), str):
            raise InvalidInput(
                "handler", f"{given!r} is no TaskHandler with a task_type", 'Set task_type = "…" in its class'
            )
        self.app.task(name=handler.task_type, retry=self._retry, timeout=self._timeout)(_function_of(handler))
        self._handlers[handler.task_type] = handler
        return self

    def with_event_handler(self, handler: Listener[TaskEvent], event_type: str | None = None) -> Scheduler:
        """Hand the events of executions to a handler: those of one type, or all.

        At most once, in the process that stored the result; `result_events` reads them from the log.
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
        """Store a task: exactly one of cron (6 fields), interval (seconds), one_time (unix time) and immediate.

        The same task again changes nothing; another one under the same id is a conflict.
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
                "schedule", "it must be said once when to run", "Give cron, interval, one_time or immediate"
            )
        made = await self.app.schedule(
            task_id,
            task_type,
            args=(payload,),
            on_conflict=on_conflict,
            on_exhausted="pause",
            retry=None if max_retries is None else retry_policy(max_retries),
            timeout=timeout_secs,
            **when,
        )
        return await self._told(made)

    def _check(self, task: BaseTask[Any, Any], task_type: str, payload: Any) -> None:
        """What the handler would be given must be to its liking."""
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
        at: Any = one_time
        if isinstance(at, int | float) and not isinstance(at, bool):
            try:
                at = to_datetime(round(at * 1000))
            except (OverflowError, ValueError):
                raise InvalidInput("one_time", f"{one_time!r} is no unix time", "Give seconds since 1970") from None
        if instant_ms(at, field="one_time") <= self.app.clock.now():
            raise InvalidInput("one_time", f"{one_time} lies in the past", "Give a later time, or immediate=True")
        return to_datetime(instant_ms(at))

    # ── managing ───────────────────────────────────────────────────────────

    async def cancel_task(self, task_id: str, reason: str) -> None:
        """Nothing more of this task will start; what runs of it is asked to stop."""
        schedule = await self.app.get(task_id)
        await self.app.delete(schedule.id, reason=reason)
        for run in await self.app.runs(schedule=schedule.id, state="running"):
            await self.app.cancel(run.id, reason=reason)

    async def get_task(self, task_id: str) -> ScheduledTask:
        """One task; an unknown id is answered with the nearest."""
        return await self._told(await self.app.get(task_id))

    async def list_tasks(self, which: TaskFilter | None = None) -> list[ScheduledTask]:
        """All tasks, or those that fit a filter, oldest first."""
        wanted = which or TaskFilter()
        found: list[ScheduledTask] = []
        page: list[Schedule] = []
        while True:
            page = await self.app.schedules(enabled=wanted.enabled, after=page[-1].id if page else None)
            if not page:
                return found
            fitting = [one for one in page if wanted.task_type in (None, one.spec.task)]
            found += [await self._told(one) for one in fitting]

    async def _told(self, schedule: Schedule) -> ScheduledTask:
        begun = await self.app.runs(schedule=schedule.id, state=BEGUN, limit=1)
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
        """The executions of a task, successful or not, in order."""
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
        """The events of executions as the log has them, in order: for handlers that were away."""
        ended = await self.app.events(types=[RunSucceeded], since=since, limit=limit)
        found = (_event_in(one.result) for one in ended if isinstance(one, RunSucceeded))
        return [event for event in found if event is not None]

    # ── running ────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Plan and work until SIGTERM or SIGINT."""
        await self.app.run_async()

    def shutdown(self) -> None:
        """Take nothing more, let what runs finish, and return from `run`; from any thread."""
        self.app.stop()


def retry_policy(max_retries: int, *, field: str = "max_retries") -> RetryPolicy:
    """1, 2, 4… minutes. The source counts a failure before it compares, so `max_retries` is executions in all."""
    if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
        raise InvalidInput(field, f"{max_retries!r} is not a whole number of at least 0", "3 means three executions")
    return Retry(max_attempts=max(1, max_retries), initial=FIRST_BACKOFF, base=2, max_delay=LONGEST_BACKOFF, jitter=0)


def _function_of(handler: TaskHandler[Any]) -> Any:
    """A function of the app that calls the handler; its payload has the type that `execute` names."""

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
    """What the class says it handles, `TaskHandler[EmailData]`; else what `execute` names."""
    for cls in type(handler).__mro__:
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is TaskHandler and not isinstance(get_args(base)[0], TypeVar):
                return get_args(base)[0]
    with contextlib.suppress(Exception):  # a name that exists only for type checkers
        hints = get_type_hints(handler.execute)
        return hints.get(list(inspect.signature(handler.execute).parameters)[1], Any)
    return Any


def _event_in(result: str | None) -> TaskEvent | None:
    """The event that a result carries; results of other tasks carry none."""
    value = None if result is None else msgspec.json.decode(result)
    if not isinstance(value, dict) or value.get("kind") != "task_event":
        return None
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(value, TaskEvent)
    return None
