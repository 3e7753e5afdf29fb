"""Events with the names and fields of source 000, translated from Mainspring's events."""

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
    """Base of the events of a task: `task_id` as the scheduling method returned it, and the execution's `run_id`."""

    task_id: str
    run_id: str | None


class TaskScheduled(TaskEvent, frozen=True, kw_only=True):
    """An execution was planned."""

    task_type: str
    scheduled_at: datetime
    run_at: datetime


class TaskStarted(TaskEvent, frozen=True, kw_only=True):
    """A worker started the execution."""

    worker_id: str
    started_at: datetime


class TaskCompleted(TaskEvent, frozen=True, kw_only=True):
    """The task returned."""

    worker_id: str
    completed_at: datetime
    duration_ms: int
    result: Any = None


class TaskFailed(TaskEvent, frozen=True, kw_only=True):
    """The task raised, ran out of time or died. `retry_count` counts the attempts before this one."""

    worker_id: str
    failed_at: datetime
    error: str
    retry_count: int
    will_retry: bool


class TaskCancelled(TaskEvent, frozen=True, kw_only=True):
    """The execution was cancelled, or a recurring task was deleted; `run_id` is None for a deleted task."""

    cancelled_at: datetime
    reason: str


class TaskRetrying(TaskEvent, frozen=True, kw_only=True):
    """The execution failed and will be attempted again."""

    attempt: int
    next_attempt_at: datetime


E = TypeVar("E", bound=TaskEvent)


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
    if isinstance(event, ScheduleDeleted) and event.reason == "finished":
        return None  # the schedule has finished: it was not cancelled
    return TaskCancelled(**head, cancelled_at=to_datetime(event.at), reason=event.reason)


_SOURCES: dict[type[TaskEvent], tuple[tuple[type[Event], ...], Callable[[Any, dict[str, Any]], TaskEvent | None]]] = {
    TaskScheduled: ((RunScheduled,), _scheduled),
    TaskStarted: ((RunStarted,), _started),
    TaskCompleted: ((RunSucceeded,), _completed),
    TaskFailed: ((RunFailed, RunRetrying), _failed),
    TaskCancelled: ((RunCancelled, ScheduleDeleted), _cancelled),
    TaskRetrying: ((RunRetrying,), _retrying),
}


def subscribe(app: Mainspring, wanted: type[E], listener: Listener[E]) -> None:
    """Call a listener with every event of a type; `TaskEvent` stands for all types."""
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
    """Logs each event as one line: final failures as errors, cancellations and failures with a retry as warnings."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("mainspring.events")

    def handle(self, event: TaskEvent) -> None:
        """Log one event."""
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
