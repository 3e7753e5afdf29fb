"""From the core's values to what is answered: names, words and times of the API."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from mainspring.api.schemas import AttemptView, ExecutionView, RetryView, ScheduleView, Status, WindowView
from mainspring.model.events import (
    Event,
    LeaseExpired,
    RunCancelled,
    RunFailed,
    RunHandedBack,
    RunLost,
    RunRetrying,
    RunSkipped,
    RunSnoozed,
    RunStarted,
    RunSucceeded,
)
from mainspring.model.http import HTTP_TASK
from mainspring.model.instant import Ms, isoformat
from mainspring.model.policies import Priority, PriorityName, RetryPolicy, RunOptions, Segment, WindowSpec
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec, TriggerSpec
from mainspring.rules.triggers import compile_trigger

#: What stands in the place of a header's value.
MASK = "***"

_STATUS: dict[State, Status] = {
    State.BLOCKED: "pending",
    State.WAITING: "pending",
    State.RUNNING: "running",
    State.RETRYING: "retrying",
    State.SUCCEEDED: "success",
    State.FAILED: "failed",
    State.LOST: "failed",
    State.CANCELLED: "cancelled",
    State.SKIPPED: "skipped",
}
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_PRIORITIES: tuple[PriorityName, ...] = ("critical", "high", "normal", "low")


def states_of(status: Status) -> tuple[State, ...]:
    """The states that a status stands for."""
    return tuple(state for state, word in _STATUS.items() if word == status)


def schedule_view(schedule: Schedule, payload: str | None, retry: RetryPolicy | None = None) -> ScheduleView:
    """A schedule; `retry` is what its task does where the schedule says nothing."""
    spec = schedule.spec
    options = spec.options or RunOptions()
    view = ScheduleView(
        id=schedule.id,
        name=schedule.name,
        revision=schedule.revision,
        description=_described(spec.trigger),
        timezone=spec.tz,
        payload=payload_of(spec.task, payload),
        retry_policy=retry_view(options.retry or retry or RetryPolicy()),
        enabled=schedule.enabled,
        state=schedule.state,
        pause_reason=schedule.reason if schedule.state == "paused" else None,
        finish_reason=schedule.reason if schedule.state == "finished" else None,
        paused_until=instant(schedule.until),
        missed=spec.missed,
        grace_ms=spec.grace,
        replay_max=spec.replay_max,
        replay_age_ms=spec.replay_age,
        overlap=spec.overlap,
        jitter_ms=spec.jitter,
        spread_ms=spec.spread,
        start_at=instant(spec.start),
        end_at=instant(spec.end),
        max_runs=spec.max_runs,
        window=None if options.window is None else window_view(options.window),
        start_deadline_ms=options.start_deadline,
        on_exhausted=options.on_exhausted or "continue",
        terminal=spec.terminal,
        priority=_PRIORITIES[Priority(spec.priority)],
        queue=spec.queue,
        timeout_ms=options.timeout,
        recovery=options.recovery or "retry",
        next_run=instant(schedule.next_at) if schedule.state == "active" else None,
        fired=schedule.fired,
        created_at=isoformat(schedule.created_at),
        updated_at=isoformat(schedule.updated_at),
    )
    match spec.trigger:
        case CronSpec(expr=expression, gap=gap, overlap=overlap):
            view.cron_expression, view.dst_gap, view.dst_overlap = expression, gap, overlap
        case EverySpec(interval=interval, anchor=anchor, fixed_delay=fixed_delay):
            view.interval_ms, view.anchor, view.fixed_delay = interval, instant(anchor), fixed_delay
        case AtSpec(times=times):
            view.at = [isoformat(time) for time in times]
    target = options.http
    if target is None:
        view.task = spec.task
    else:
        view.agent_id, view.agent_url, view.http_method = target.agent_id, target.url, target.method
        view.headers = dict.fromkeys(target.header_names, MASK)
    return view


def payload_of(task: str, text: str | None) -> Any:
    """The payload as it was given: the body of an agent's request, or a task's arguments."""
    if text is None:
        return None
    if task == HTTP_TASK:
        return msgspec.Raw(text.encode())
    wire = msgspec.json.decode(text)
    return wire["a"] if wire.get("a") else wire.get("k", {})


def _described(trigger: TriggerSpec) -> str:
    """In words; schedules that differ only in what H stands for share them where no H is written."""
    if isinstance(trigger, CronSpec) and "h" not in trigger.expr.lower():
        trigger = replace(trigger, hash_id=None)
    return _words_of(trigger)


@lru_cache(65_536)
def _words_of(trigger: TriggerSpec) -> str:
    return compile_trigger(trigger, None).describe()


def retry_view(policy: RetryPolicy) -> RetryView:
    return RetryView(
        max_attempts=policy.max_attempts,
        backoff_multiplier=policy.multiplier if policy.backoff == "linear" else policy.base,
        initial_delay_ms=policy.initial,
        max_delay_ms=policy.max_delay,
        backoff=policy.backoff,
        jitter=policy.jitter,
    )


def window_view(window: WindowSpec) -> WindowView:
    return WindowView(
        timezone=window.tz,
        weekdays=[_WEEKDAYS[day] for day in window.weekdays],
        segments=[f"{_clock(segment.start)}-{_clock(segment.end)}" for segment in _segments(window)],
    )


def _segments(window: WindowSpec) -> Iterable[Segment]:
    return window.segments


def _clock(seconds: int) -> str:
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}"
    return f"{text}:{seconds % 60:02}" if seconds % 60 else text


def execution_view(run: Run) -> ExecutionView:
    """One run, without what it was given."""
    waits = run.state is State.RETRYING
    return ExecutionView(
        id=run.id,
        schedule_id=run.schedule_id,
        task=run.task,
        fire_time=instant(run.fire_time),
        status=_STATUS[run.state],
        reason="lost" if run.state is State.LOST else run.reason,
        attempts=run.attempt,
        origin=run.origin,
        catch_up=run.catch_up,
        due_at=isoformat(run.due_at),
        next_attempt_at=isoformat(run.ready_at) if waits else None,
        started_at=instant(run.started_at),
        completed_at=instant(run.ended_at),
        duration_ms=run.ms,
        error=run.error,
        response=None if run.result is None else result_of(run.result),
        progress=run.progress,
        cancel_requested=run.cancel,
        created_at=isoformat(run.created_at),
    )


def result_of(text: str) -> Any:
    """What the handler returned, or the agent answered."""
    with contextlib.suppress(msgspec.DecodeError):
        msgspec.json.decode(text)
        return msgspec.Raw(text.encode())
    return text


def attempt_views(events: Iterable[Event]) -> list[AttemptView]:
    """The attempts of one run, from its own events in order."""
    found: list[AttemptView] = []
    for event in events:
        if isinstance(event, RunStarted):
            found.append(
                AttemptView(
                    attempt=event.attempt or len(found) + 1,
                    started_at=isoformat(event.at),
                    status="running",
                    instance=event.owner,
                )
            )
        elif found and found[-1].status == "running":
            _ended(found[-1], event)
    return found


def _ended(attempt: AttemptView, event: Event) -> None:
    match event:
        case RunSucceeded():
            attempt.status, attempt.duration_ms = "success", event.ms
        case RunRetrying():
            attempt.status, attempt.duration_ms, attempt.error = "retrying", event.ms, event.error
            attempt.next_attempt_at = isoformat(event.next_attempt_at)
        case RunFailed():
            attempt.status, attempt.duration_ms, attempt.error = "failed", event.ms, event.error
        case RunCancelled():
            attempt.status, attempt.error = "cancelled", event.reason
        case RunSkipped():
            attempt.status, attempt.error = "skipped", event.reason
        case RunSnoozed():
            attempt.status, attempt.next_attempt_at = "later", isoformat(event.until)
        case RunHandedBack():
            attempt.status, attempt.error = "handed-back", event.reason
        case LeaseExpired() | RunLost():
            attempt.status, attempt.error = "lost", "the worker fell silent"
        case _:
            return
    attempt.ended_at = isoformat(event.at)


def instant(at: Ms | None) -> str | None:
    return None if at is None else isoformat(at)


def unset(value: Any) -> bool:
    """True for what was not given."""
    return value is UNSET
