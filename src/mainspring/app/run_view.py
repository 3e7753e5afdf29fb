"""Run view: the `Run` that programs get, with datetimes and decoded arguments, made from the stored row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.app.plain_data import refuse_attribute, to_plain
from mainspring.model.http import HTTP_TASK
from mainspring.model.instant import Ms, load_zone, to_datetime
from mainspring.model.policies import Priority, PriorityName
from mainspring.model.run import CLAIMABLE, RunOrigin, State
from mainspring.model.run import Run as RunRow

#: Name of a column of the stored row, which this class had once → where its value is now.
_MOVED = {
    "body": "its content is `args`, `kwargs` or `payload`",
    "cancel": "use cancel_requested",
    "began_at": "use started_at",
    "lane": "use namespace and queue",
    "ms": "use duration_ms",
    "ns": "use namespace",
    "owner": "use worker",
    "ready_at": "use next_attempt_at, or due_at before the first attempt",
    "schedule_name": "use schedule",
    "status": "use state",
    "unique_key": "use unique",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as it was stored when it was read: `run = await ms.find_by_id(…)`. It does not change later.

    Times are datetimes in the zone of the run's schedule, in UTC for a run without a schedule. `args`, `kwargs`,
    `payload` and `result` are plain data: dictionaries, lists, texts, numbers. `handle.result()` returns the result in
    the type that the task's function declares. `to_dict()` returns data for `json.dumps`.
    """

    #: The id, which every attempt has as its idempotency key.
    id: str
    #: Name of the task; "http" for the call of an HTTP agent.
    task: str
    #: Name of the schedule; None for a run that `enqueue` made, or if the schedule was purged.
    schedule: str | None
    #: Id of the schedule; None for a run that `enqueue` made.
    schedule_id: str | None
    #: What became of the run so far.
    state: State
    #: Why the run ended, or why it waits again; None: no reason was given.
    reason: str | None
    #: What created the run: "fire", "enqueue" or "trigger".
    origin: RunOrigin
    #: The number of the present or last attempt; 0 before the first.
    attempt: int
    #: Number of attempts that failed.
    failures: int
    #: Number of attempts whose worker disappeared.
    crashes: int
    #: Arguments by position. Arguments that have a name are stored by name.
    args: list[Any]
    #: Arguments by name.
    kwargs: dict[str, Any]
    #: What an HTTP agent gets as JSON; None for a task.
    payload: Any
    #: What the handler returned; for an HTTP agent its answer. None before the end.
    result: Any
    #: The text of the last failure; None: no attempt failed.
    error: str | None
    #: The last progress line, from `ctx.progress`.
    progress: str | None
    #: The planned time of the fire; None for a run that `enqueue` made.
    fire_time: datetime | None
    #: When the run was to start: the fire time with jitter, or the time for which it was enqueued.
    due_at: datetime
    #: When the run was stored.
    created_at: datetime
    #: Start of the present or last attempt.
    started_at: datetime | None
    #: When the run ended; None: it is open.
    ended_at: datetime | None
    #: When the next attempt may start, while the run waits for it: after a failure or a snooze.
    next_attempt_at: datetime | None
    #: How long the handler took in the last attempt that ended.
    duration_ms: int | None
    #: The namespace of the run.
    namespace: str
    #: The queue from which workers take it.
    queue: str
    #: Of the runs that are due, those with a higher priority start first.
    priority: PriorityName
    #: True if the run makes up for missed fires.
    catch_up: bool
    #: The value of `using(unique=…)`: one open run of the task has it at most. None: no such limit.
    unique: str | None
    #: Why a running run was asked to stop; None: it was not asked.
    cancel_requested: str | None
    #: The worker that executes the run now.
    worker: str | None
    #: The concurrency limit at which the run waits for its turn.
    parked_on: str | None
    #: True for a run that failed for good and was not dismissed.
    dead: bool
    #: The revision of the schedule that planned the run.
    revision: int | None

    @property
    def idempotency_key(self) -> str:
        """A key that a handler can pass to external systems, equal in every attempt of this run: the run's id."""
        return self.id

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON: times as RFC 3339 text in UTC, the state as its name."""
        return to_plain(self)

    if not TYPE_CHECKING:  # for type checkers an unknown name is an error

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, with the present name of an attribute that was renamed."""
            refuse_attribute("Run", name, _MOVED)


def view_run(row: RunRow, body: str | None, schedule: str | None) -> Run:
    """Return the view of a stored run. `body`: the text of its payload. `schedule`: the name of its schedule."""
    zone = None if row.options is None or row.options.tz is None else load_zone(row.options.tz)

    def moment(at: Ms | None) -> datetime | None:
        return None if at is None else to_datetime(at, zone)

    args, kwargs, payload = decode_body(row.task, body)
    return Run(
        id=row.id,
        task=row.task,
        schedule=schedule,
        schedule_id=row.schedule_id,
        state=row.state,
        reason=row.reason,
        origin=row.origin,
        attempt=row.attempt,
        failures=row.failures,
        crashes=row.crashes,
        args=args,
        kwargs=kwargs,
        payload=payload,
        result=None if row.result is None else decode_json(row.result),
        error=row.error,
        progress=row.progress,
        fire_time=moment(row.fire_time),
        due_at=to_datetime(row.due_at, zone),
        created_at=to_datetime(row.created_at, zone),
        started_at=moment(row.started_at),
        ended_at=moment(row.ended_at),
        next_attempt_at=moment(row.ready_at) if row.attempt and row.state in CLAIMABLE else None,
        duration_ms=row.ms,
        namespace=row.ns,
        queue=row.lane.removeprefix(f"{row.ns}/"),
        priority=priority_name(row.priority),
        catch_up=row.catch_up,
        unique=None if row.unique_key is None else row.unique_key.removeprefix(f"{row.task}:"),
        cancel_requested=row.cancel,
        worker=row.owner,
        parked_on=row.parked_on,
        dead=row.dead,
        revision=row.revision,
    )


def priority_name(priority: int) -> PriorityName:
    """Return the name of a stored priority, such as "high"."""
    names: dict[Priority, PriorityName] = {
        Priority.CRITICAL: "critical",
        Priority.HIGH: "high",
        Priority.NORMAL: "normal",
        Priority.LOW: "low",
    }
    return names[Priority(priority)]


def decode_body(task: str, text: str | None) -> tuple[list[Any], dict[str, Any], Any]:
    """Return the arguments by position, the arguments by name, and the payload of an HTTP agent.

    `text` is the stored payload; None: there is none.
    """
    if text is None:
        return [], {}, None
    wire = decode_json(text)
    if task == HTTP_TASK:
        return [], {}, wire
    return wire.get("a", []), wire.get("k", {}), None


def decode_json(text: str) -> Any:
    """Return the value of a JSON text; the text itself if it is no JSON."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
