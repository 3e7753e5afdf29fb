"""Translate stored schedules and runs into views: the structs that the API answers with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec

from mainspring.api.schemas import (
    AgentResponseView,
    AttemptView,
    DriftView,
    ExecutionView,
    LogLineView,
    RetryView,
    ScheduleView,
    Status,
    WindowView,
)
from mainspring.app.log_line import LogLine
from mainspring.app.run_view import priority_name
from mainspring.app.schedule_view import describe_trigger, describe_window
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
from mainspring.model.http import HTTP_TASK, HttpResult, HttpTarget
from mainspring.model.instant import Ms, isoformat
from mainspring.model.policies import RetryPolicy, RunOptions, WindowSpec
from mainspring.model.query_values import MASK, hide_query_values
from mainspring.model.run import Run, State
from mainspring.model.schedule import Schedule
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec, TriggerSpec
from mainspring.rules.drift import Drift
from mainspring.rules.next_run import find_next_run

_STATUS_BY_STATE: dict[State, Status] = {
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


def states_for(status: Status) -> tuple[State, ...]:
    """Return the states of a run that the API shows as `status`."""
    return tuple(state for state, word in _STATUS_BY_STATE.items() if word == status)


def schedule_view(schedule: Schedule, payload: str | None, retry: RetryPolicy | None = None) -> ScheduleView:
    """Return the view of a schedule. `payload` is the stored text of its payload; None if it has none.

    `retry` is the retry policy of its task, None if it is not known. A schedule without a policy of its own shows
    `retry`, or the default policy if `retry` is None.
    """
    spec = schedule.spec
    options = spec.options or RunOptions()
    view = ScheduleView(
        id=schedule.id,
        name=schedule.name,
        revision=schedule.revision,
        description=describe_trigger(spec.trigger),
        timezone=spec.tz,
        payload=decode_payload(spec.task, payload),
        retry_policy=retry_view(options.retry or retry or RetryPolicy()),
        enabled=schedule.enabled,
        state=schedule.state,
        pause_reason=schedule.reason if schedule.state == "paused" else None,
        finish_reason=schedule.reason if schedule.state == "finished" else None,
        paused_until=format_instant(schedule.until),
        missed=spec.missed,
        grace_ms=spec.grace,
        replay_max=spec.replay_max,
        replay_age_ms=spec.replay_age,
        overlap=spec.overlap,
        jitter_ms=spec.jitter,
        spread_ms=spec.spread,
        start_at=format_instant(spec.start),
        end_at=format_instant(spec.end),
        max_runs=spec.max_runs,
        window=None if options.window is None else window_view(options.window),
        start_deadline_ms=options.start_deadline,
        on_exhausted=options.on_exhausted or "continue",
        terminal=spec.terminal,
        priority=priority_name(spec.priority),
        queue=spec.queue,
        timeout_ms=options.timeout,
        recovery=options.recovery or "retry",
        next_run=format_instant(find_next_run(schedule)),
        fired=schedule.fired,
        created_at=isoformat(schedule.created_at),
        updated_at=isoformat(schedule.updated_at),
    )
    _add_trigger(view, spec.trigger)
    _add_target(view, spec.task, options.http)
    return view


def _add_trigger(view: ScheduleView, trigger: TriggerSpec) -> None:
    """Set the fields of `view` that say when the schedule fires, for example `cron_expression`."""
    match trigger:
        case CronSpec(expr=expression, gap=gap, overlap=overlap):
            view.cron_expression, view.dst_gap, view.dst_overlap = expression, gap, overlap
        case EverySpec(interval=interval, anchor=anchor, fixed_delay=fixed_delay, first=first):
            view.interval_ms, view.anchor, view.fixed_delay = interval, format_instant(anchor), fixed_delay
            if first is not None:
                view.first = first
        case AtSpec(times=times):
            view.at = [isoformat(time) for time in times]


def _add_target(view: ScheduleView, task: str, target: HttpTarget | None) -> None:
    """Set the fields of `view` that say what the schedule calls: the HTTP agent `target`, or `task` if that is None."""
    if target is None:
        view.task = task
    else:
        view.agent_url = hide_query_values(target.url)
        view.agent_id, view.http_method = target.agent_id, target.method
        view.headers = dict.fromkeys(target.header_names, MASK)


def decode_payload(task: str, text: str | None) -> Any:
    """Return the payload of a schedule or run in the form of the API, from its stored `text`; None if `text` is None.

    For an HTTP agent, it is `text` itself, the body of the calls, as `msgspec.Raw`. For a task, it is an array of the
    arguments by position, or an object with the arguments by name if there are none by position.
    """
    if text is None:
        return None
    if task == HTTP_TASK:
        return msgspec.Raw(text.encode())
    wire = msgspec.json.decode(text)
    return wire["a"] if wire.get("a") else wire.get("k", {})


def retry_view(policy: RetryPolicy) -> RetryView:
    """Return the view of a retry policy. `backoffMultiplier` is `multiplier` if the backoff is linear, else `base`."""
    return RetryView(
        max_attempts=policy.max_attempts,
        backoff_multiplier=policy.multiplier if policy.backoff == "linear" else policy.base,
        initial_delay_ms=policy.initial,
        max_delay_ms=policy.max_delay,
        backoff=policy.backoff,
        jitter=policy.jitter,
    )


def window_view(window: WindowSpec) -> WindowView:
    """Return the view of a window, with weekdays as words and segments as `HH:MM-HH:MM`."""
    words = describe_window(window)
    return WindowView(timezone=words["tz"], weekdays=words["weekdays"], segments=words["segments"])


def drift_view(drift: Drift) -> DriftView:
    """Return the view of a difference between a schedule and its code."""
    return DriftView(
        code=drift.code,
        stored=drift.stored,
        edited_by=drift.by,
        edited_at=isoformat(drift.at),
        command=drift.command,
    )


def execution_view(run: Run) -> ExecutionView:
    """Return the view of a run, without `payload` and `attemptDetails`."""
    waits = run.state is State.RETRYING
    return ExecutionView(
        id=run.id,
        schedule_id=run.schedule_id,
        task=run.task,
        fire_time=format_instant(run.fire_time),
        status=_STATUS_BY_STATE[run.state],
        reason="lost" if run.state is State.LOST else run.reason,
        attempts=run.attempt,
        origin=run.origin,
        catch_up=run.catch_up,
        due_at=isoformat(run.due_at),
        next_attempt_at=isoformat(run.ready_at) if waits else None,
        started_at=format_instant(run.started_at),
        completed_at=format_instant(run.ended_at),
        duration_ms=run.ms,
        error=run.error,
        response=None if run.result is None else decode_result(run.result, run.task),
        progress=run.progress,
        cancel_requested=run.cancel,
        created_at=isoformat(run.created_at),
    )


def decode_result(text: str, task: str) -> Any:
    """Return a stored result of a run of `task`: an agent's answer as its view, JSON as it is, other text as string."""
    if task == HTTP_TASK:
        with contextlib.suppress(msgspec.DecodeError):
            return agent_response_view(msgspec.json.decode(text, type=HttpResult))
    with contextlib.suppress(msgspec.DecodeError):
        msgspec.json.decode(text)
        return msgspec.Raw(text.encode())
    return text


def agent_response_view(result: HttpResult) -> AgentResponseView:
    """Return the view of an agent's answer, with its decoded body if that is whole and JSON by its content type."""
    view = AgentResponseView(result.status, result.body, result.content_type, result.bytes, result.truncated)
    kind = result.content_type.partition(";")[0].strip().lower()
    if not result.truncated and (kind == "application/json" or kind.endswith("+json")):
        with contextlib.suppress(msgspec.DecodeError):
            msgspec.json.decode(result.body)
            view.json = msgspec.Raw(result.body.encode())
    return view


def attempt_views(events: Iterable[Event], task: str) -> list[AttemptView]:
    """Return the views of the attempts of a run of `task`, oldest first. `events`: those of the run, as in the log."""
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
            _end_attempt(found[-1], event, task)
    return found


def _end_attempt(attempt: AttemptView, event: Event, task: str) -> None:
    """Set outcome and end in the view of a running attempt if `event` ends the attempt; else change nothing."""
    match event:
        case RunSucceeded():
            attempt.status, attempt.duration_ms = "success", event.ms
            attempt.response = None if event.result is None else decode_result(event.result, task)
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
    if isinstance(event, RunRetrying | RunFailed):
        attempt.trace = event.trace
        attempt.response = None if event.answer is None else decode_result(event.answer, task)
    if isinstance(event, RunSucceeded | RunRetrying | RunFailed | RunCancelled | RunSnoozed):
        attempt.overran_ms = event.overran_ms


def log_line_view(line: LogLine) -> LogLineView:
    """Return the view of a line of a run's log."""
    return LogLineView(**line.to_dict())


def format_instant(at: Ms | None) -> str | None:
    """Return an instant as RFC 3339 text in UTC; None for None."""
    return None if at is None else isoformat(at)
