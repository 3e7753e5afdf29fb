"""Events with the names and fields of scheduler-rs, for its event handlers. They are made from Mainspring's events."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from mainspring import (
    Event,
    InvalidInput,
    Mainspring,
    RunCancelled,
    RunFailed,
    RunRetrying,
    RunScheduled,
    RunStarted,
    RunSucceeded,
)
from mainspring.compat.event_handlers import Listener, as_function
from mainspring.model.events import ScheduleDeleted
from mainspring.model.instant import to_datetime


class TaskEvent(Struct, frozen=True, kw_only=True):
    """Base class of the events of a task."""

    #: The id that the scheduling method returned: the schedule's for a recurring task, else the run's.
    task_id: str
    #: The run that the event is about; None if it is about the schedule.
    run_id: str | None


class TaskScheduled(TaskEvent, frozen=True, kw_only=True):
    """A run was created."""

    #: Name of the task.
    task_type: str
    #: When the run was created.
    scheduled_at: datetime
    #: When the run is due.
    run_at: datetime


class TaskStarted(TaskEvent, frozen=True, kw_only=True):
    """A worker claimed the run for an attempt."""

    worker_id: str
    started_at: datetime


class TaskCompleted(TaskEvent, frozen=True, kw_only=True):
    """The task's function returned. `result` is its value as JSON stores it: for example a list for a tuple."""

    worker_id: str
    completed_at: datetime
    duration_ms: int
    result: Any = None


class TaskFailed(TaskEvent, frozen=True, kw_only=True):
    """An attempt failed, or a run failed because its workers crashed too often.

    An attempt fails if the task's function raises, exceeds its time-out, loses its process, or returns a value that
    cannot be stored. `retry_count`: the number of attempts before this one. A crash of a worker has no event unless the
    run fails by it: there is none if the run is tried again, or if it ends as lost (`recovery="fail"`).
    """

    worker_id: str
    failed_at: datetime
    error: str
    retry_count: int
    will_retry: bool


class TaskCancelled(TaskEvent, frozen=True, kw_only=True):
    """A run was cancelled; or the schedule of a recurring task was deleted, in which case `run_id` is None."""

    cancelled_at: datetime
    reason: str


class TaskRetrying(TaskEvent, frozen=True, kw_only=True):
    """An attempt failed, and the run will be tried again. `attempt` is the number of the failed attempt, from 1."""

    attempt: int
    next_attempt_at: datetime


E = TypeVar("E", bound=TaskEvent)


# Each of these functions returns the event to deliver for an event of Mainspring. `head` holds two fields of the event
# to deliver, by name: `task_id` and `run_id`.


def _scheduled(event: RunScheduled, head: dict[str, Any]) -> TaskEvent:
    due = to_datetime(event.due_at)
    return TaskScheduled(**head, task_type=event.task, scheduled_at=to_datetime(event.at), run_at=due)


def _started(event: RunStarted, head: dict[str, Any]) -> TaskEvent:
    return TaskStarted(**head, worker_id=event.owner or "", started_at=to_datetime(event.at))


def _completed(event: RunSucceeded, head: dict[str, Any]) -> TaskEvent:
    return TaskCompleted(
        **head,
        worker_id=event.owner or "",
        completed_at=to_datetime(event.at),
        duration_ms=event.ms or 0,
        result=None if event.result is None else json.loads(event.result),
    )


def _failed(event: RunFailed | RunRetrying, head: dict[str, Any]) -> TaskEvent:
    """Return a `TaskFailed` for a failed attempt. Its `will_retry` is True if `event` is a `RunRetrying`.

    `head`: the fields `task_id` and `run_id` of the `TaskFailed`, by name.
    """
    return TaskFailed(
        **head,
        worker_id=event.owner or "",
        failed_at=to_datetime(event.at),
        error=event.error,
        retry_count=max(0, (event.attempt or 1) - 1),
        will_retry=isinstance(event, RunRetrying),
    )


def _retrying(event: RunRetrying, head: dict[str, Any]) -> TaskEvent:
    return TaskRetrying(**head, attempt=event.attempt or 1, next_attempt_at=to_datetime(event.next_attempt_at))


def _cancelled(event: RunCancelled | ScheduleDeleted, head: dict[str, Any]) -> TaskEvent | None:
    """Return a `TaskCancelled`; None for a schedule that was deleted because it had finished.

    `head`: the fields `task_id` and `run_id` of the `TaskCancelled`, by name.
    """
    if isinstance(event, ScheduleDeleted) and event.reason == "finished":
        return None
    return TaskCancelled(**head, cancelled_at=to_datetime(event.at), reason=event.reason)


#: Type of event → the types of Mainspring's events from which it is made, and the function that makes it.
_SOURCES: dict[type[TaskEvent], tuple[tuple[type[Event], ...], Callable[[Any, dict[str, Any]], TaskEvent | None]]] = {
    TaskScheduled: ((RunScheduled,), _scheduled),
    TaskStarted: ((RunStarted,), _started),
    TaskCompleted: ((RunSucceeded,), _completed),
    TaskFailed: ((RunFailed, RunRetrying), _failed),
    TaskCancelled: ((RunCancelled, ScheduleDeleted), _cancelled),
    TaskRetrying: ((RunRetrying,), _retrying),
}


def subscribe(app: Mainspring, wanted: type[E], listener: Listener[E]) -> None:
    """Register `listener` with `app`, to be called at most once with each event of the type `wanted`.

    Only events that this process commits while its engine runs are delivered. `TaskEvent` stands for all types. Raises:
    InvalidInput if `wanted` is no type of event, or the listener is neither a function nor an object with a method
    `handle`.
    """
    call = as_function(listener)
    chosen = [kind for kind in _SOURCES if isinstance(wanted, type) and issubclass(kind, wanted)]
    if not chosen:
        names = ", ".join(kind.__name__ for kind in _SOURCES)
        raise InvalidInput("event", f"{wanted!r} is not an event of a task", f"Use {names}, or TaskEvent for all")
    makers = [_SOURCES[kind] for kind in chosen]

    async def deliver(event: Event) -> None:
        head = {"task_id": event.schedule_id or event.run_id, "run_id": event.run_id}
        for ours, make in makers:
            made: Any = make(event, head) if isinstance(event, ours) else None
            answer = None if made is None else call(made)
            if inspect.isawaitable(answer):
                await answer

    app.on_event(tuple({one for ours, _ in makers for one in ours}), deliver)


class LoggingHandler:
    """Event handler that logs each event as one line: `scheduler.on_event(TaskEvent, LoggingHandler())`.

    Final failures have the level ERROR; cancellations, and failures with a retry, WARNING; all others INFO. `logger`
    None: the logger "mainspring.events".
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("mainspring.events")

    def handle(self, event: TaskEvent) -> None:
        """Log an event: the name of its type, its `task_id`, and its other fields as name=value."""
        level = logging.INFO
        if isinstance(event, TaskFailed):
            level = logging.WARNING if event.will_retry else logging.ERROR
        elif isinstance(event, TaskRetrying | TaskCancelled):
            level = logging.WARNING
        name = type(event).__name__
        fields = " ".join(f"{key}={value}" for key, value in asdict(event).items() if key != "task_id")
        self._logger.log(
            level, "%s %s %s", name, event.task_id, fields, extra={"action": name, "task_id": event.task_id}
        )
