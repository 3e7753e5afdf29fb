"""Schedule view: the `Schedule` that programs get, with datetimes and its trigger in words, made from a stored row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.app.plain_data import refuse_attribute, to_plain
from mainspring.app.run_view import Run, decode_body, priority_name
from mainspring.model.http import HTTP_TASK
from mainspring.model.instant import Ms, format_duration, load_zone, to_datetime
from mainspring.model.policies import Missed, Overlap, PriorityName, RetryPolicy, RunOptions, WindowSpec
from mainspring.model.query_values import hide_query_values
from mainspring.model.schedule import Schedule as ScheduleRow
from mainspring.model.schedule import ScheduleState
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec, TriggerSpec
from mainspring.rules.next_run import find_next_run
from mainspring.rules.triggers import compile_trigger

WEEKDAY_WORDS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_RETRY_DURATIONS = ("initial", "max_delay")
#: Name of a column of the stored row, which this class had once → where its value is now.
_MOVED = {
    "anchor": "it is internal",
    "body": "its content is `args`, `kwargs` or `payload`",
    "cursor": "it is internal; use next_run",
    "next_at": "next_run is the datetime",
    "ns": "use namespace",
    "owner": "it is in the events of the schedule",
    "spec": "its parts are attributes of the schedule, such as cron, missed, overlap and timeout",
    "until": "use paused_until",
    "timezone": "use tz",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule as it was stored when it was read: `schedule = await ms.get("nightly")`. It does not change later.

    Times are datetimes in the schedule's zone `tz`. Durations are texts such as "1h30m". Options have the names that
    `ms.schedule` takes; None: the task's own setting or no limit. `to_dict()` returns data for `json.dumps`.
    """

    #: The id, which never changes.
    id: str
    #: The name, unique in its namespace.
    name: str
    #: The namespace of the schedule.
    namespace: str
    #: The task that it runs; "http" if it calls the HTTP agent at `url`.
    task: str
    #: URL of the HTTP agent; None for a task.
    url: str | None
    #: When it fires, in words: "At 09:00, Monday through Friday (Europe/Berlin)".
    trigger: str
    #: Its cron expression; None: it has another trigger.
    cron: str | None
    #: Its interval; None: it has another trigger.
    every: str | None
    #: Its list of times; None: it has another trigger.
    at: list[datetime] | None
    #: Its zone.
    tz: str
    #: Whether it plans runs.
    state: ScheduleState
    #: Why it is paused, finished or deleted.
    reason: str | None
    #: When a paused schedule resumes by itself; None: it waits for `resume`.
    paused_until: datetime | None
    #: The next fire that will run; None: there is none, it is not active, or with fixed_delay a run is open.
    next_run: datetime | None
    #: The newest run, which may still wait; None: there is none.
    last_run: Run | None
    #: Arguments by position. Arguments that have a name are stored by name.
    args: list[Any]
    #: Arguments by name.
    kwargs: dict[str, Any]
    #: What an HTTP agent gets as JSON; None for a task.
    payload: Any
    # Options that `PolicyOptions` explains, with their defaults where none was given.
    missed: Missed
    overlap: Overlap
    grace: str
    replay_max: int
    replay_age: str
    jitter: str
    spread: str
    start: datetime | None
    end: datetime | None
    max_runs: int | None
    #: Fires that count against `max_runs`.
    fired: int
    #: True if the interval counts from the end of the run before.
    fixed_delay: bool
    priority: PriorityName
    queue: str
    timeout: str | None
    retry: dict[str, Any] | None
    recovery: str | None
    max_crashes: int | None
    window: dict[str, Any] | None
    start_deadline: str | None
    on_exhausted: str
    terminal: str
    #: Number of its definition, which grows with each edit.
    revision: int
    #: True if a program declares it.
    declared: bool
    #: True if a program declares it, and a person has edited it since.
    drifted: bool
    #: When it was created.
    created_at: datetime
    #: When it was changed last.
    updated_at: datetime

    @property
    def enabled(self) -> bool:
        """True while the schedule plans runs: it is not paused, finished or deleted."""
        return self.state == "active"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and `enabled`, as data for JSON: times as RFC 3339 text in UTC."""
        return {**to_plain(self), "enabled": self.enabled}

    if not TYPE_CHECKING:  # for type checkers an unknown name is an error

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, with the present name of an attribute that was renamed."""
            refuse_attribute("Schedule", name, _MOVED)


def view_schedule(row: ScheduleRow, body: str | None, last_run: Run | None) -> Schedule:
    """Return the view of a stored schedule. `body`: the text of its payload. `last_run`: the view of its newest run."""
    spec = row.spec
    options = spec.options or RunOptions()
    zone = load_zone(spec.tz)

    def moment(at: Ms | None) -> datetime | None:
        return None if at is None else to_datetime(at, zone)

    trigger = spec.trigger
    args, kwargs, payload = decode_body(spec.task, body)
    return Schedule(
        id=row.id,
        name=row.name,
        namespace=row.ns,
        task=spec.task,
        url=None if options.http is None or spec.task != HTTP_TASK else hide_query_values(options.http.url),
        trigger=describe_trigger(trigger),
        cron=trigger.expr if isinstance(trigger, CronSpec) else None,
        every=format_duration(trigger.interval) if isinstance(trigger, EverySpec) else None,
        at=[to_datetime(time, zone) for time in trigger.times] if isinstance(trigger, AtSpec) else None,
        tz=spec.tz,
        state=row.state,
        reason=row.reason,
        paused_until=moment(row.until),
        next_run=moment(find_next_run(row)),
        last_run=last_run,
        args=args,
        kwargs=kwargs,
        payload=payload,
        missed=spec.missed,
        overlap=spec.overlap,
        grace=format_duration(spec.grace),
        replay_max=spec.replay_max,
        replay_age=format_duration(spec.replay_age),
        jitter=format_duration(spec.jitter),
        spread=format_duration(spec.spread),
        start=moment(spec.start),
        end=moment(spec.end),
        max_runs=spec.max_runs,
        fired=row.fired,
        fixed_delay=isinstance(trigger, EverySpec) and trigger.fixed_delay,
        priority=priority_name(spec.priority),
        queue=spec.queue,
        timeout=_duration(options.timeout),
        retry=None if options.retry is None else _describe_retry(options.retry),
        recovery=options.recovery,
        max_crashes=options.max_crashes,
        window=None if options.window is None else describe_window(options.window),
        start_deadline=_duration(options.start_deadline),
        on_exhausted=options.on_exhausted or "continue",
        terminal=spec.terminal,
        revision=row.revision,
        declared=row.app != "",
        drifted=row.drifted,
        created_at=to_datetime(row.created_at, zone),
        updated_at=to_datetime(row.updated_at, zone),
    )


def describe_trigger(trigger: TriggerSpec) -> str:
    """Return the description of a trigger in words.

    The hash id, from which the values of `H` are derived, differs between schedules. It is removed from a cron trigger
    without `H`, so that schedules with equal expressions share one cached description.
    """
    if isinstance(trigger, CronSpec) and "h" not in trigger.expr.lower():
        trigger = replace(trigger, hash_id=None)
    return _describe_cached(trigger)


@lru_cache(65_536)
def _describe_cached(trigger: TriggerSpec) -> str:
    return compile_trigger(trigger, None).describe()


def describe_window(window: WindowSpec) -> dict[str, Any]:
    """Return the zone, the weekdays as words, and the segments as `HH:MM-HH:MM` of a time window."""
    return {
        "tz": window.tz,
        "weekdays": [WEEKDAY_WORDS[day] for day in window.weekdays],
        "segments": [f"{_format_time(segment.start)}-{_format_time(segment.end)}" for segment in window.segments],
    }


def _format_time(seconds: int) -> str:
    """Return a time of day, in seconds after midnight, as `HH:MM`; as `HH:MM:SS` if it is no full minute."""
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}"
    return f"{text}:{seconds % 60:02}" if seconds % 60 else text


def _describe_retry(policy: RetryPolicy) -> dict[str, Any]:
    """Return a retry policy as the arguments of `Retry`, with durations as text."""
    plain = {name: getattr(policy, name) for name in policy.__struct_fields__}
    return plain | {name: format_duration(plain[name]) for name in _RETRY_DURATIONS}


def _duration(ms: Ms | None) -> str | None:
    return None if ms is None else format_duration(ms)
