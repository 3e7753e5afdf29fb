"""From what a user writes to a checked definition of a schedule."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Literal, TypedDict

import msgspec
from msgspec.structs import replace

from mainspring.model.errors import InvalidInput
from mainspring.model.http import HttpTarget
from mainspring.model.ids import body_id, check_name
from mainspring.model.instant import Duration, Ms, duration_ms, instant_ms, to_datetime, zone
from mainspring.model.policies import (
    MISSED,
    ON_EXHAUSTED,
    OVERLAP,
    RECOVERY,
    Missed,
    OnExhausted,
    Overlap,
    Priority,
    PriorityName,
    Recovery,
    RetryPolicy,
    RunOptions,
    WindowSpec,
    checked_retry,
    choice,
    priority_of,
)
from mainspring.model.schedule import ScheduleSpec
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec
from mainspring.rules.triggers import At, Cron, Every, Trigger

TERMINAL = ("keep", "delete")
_in_order = msgspec.json.Encoder(order="deterministic")


class PolicyOptions(TypedDict, total=False):
    """How a schedule behaves; each has the default of `build_spec`."""

    tz: str | None
    missed: Missed
    grace: Duration
    replay_max: int
    replay_age: Duration
    overlap: Overlap
    jitter: Duration
    spread: Duration
    start: datetime | None
    end: datetime | None
    max_runs: int | None
    window: WindowSpec | None
    start_deadline: Duration | None
    on_exhausted: OnExhausted
    terminal: Literal["keep", "delete"]
    priority: Priority | PriorityName | int
    queue: str
    retry: RetryPolicy | None
    timeout: Duration | None
    recovery: Recovery | None


class WhenAndHow(PolicyOptions, total=False):
    """When a schedule fires (exactly one of these), and how it behaves."""

    trigger: Trigger
    cron: str | Cron
    every: Duration | Every
    at: datetime | Iterable[datetime] | At
    delay: Duration


def build_spec(
    *,
    name: str,
    task: str,
    now: Ms,
    body: str | None = None,
    gates: tuple[str, ...] = (),
    default_tz: str = "UTC",
    trigger: Trigger | None = None,
    cron: str | Cron | None = None,
    every: Duration | Every | None = None,
    at: datetime | Iterable[datetime] | At | None = None,
    delay: Duration | None = None,
    tz: str | None = None,
    missed: Missed = "catch_up_once",
    grace: Duration = "60s",
    replay_max: int = 1_000,
    replay_age: Duration = "24h",
    overlap: Overlap = "forbid",
    jitter: Duration = 0,
    spread: Duration = 0,
    start: datetime | None = None,
    end: datetime | None = None,
    max_runs: int | None = None,
    window: WindowSpec | None = None,
    start_deadline: Duration | None = None,
    on_exhausted: OnExhausted = "continue",
    terminal: str = "keep",
    priority: Priority | str | int = Priority.NORMAL,
    queue: str = "default",
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    recovery: Recovery | None = None,
    http: HttpTarget | None = None,
) -> ScheduleSpec:
    """Check everything; an error names the field and what would be right."""
    own_zone = next((given.spec.tz for given in (cron, trigger) if isinstance(given, Cron)), None)
    zone_name = tz or own_zone or default_tz
    zone(zone_name, field="tz")
    when = _trigger(name, now, zone_name, trigger, cron, every, at, delay)
    fixed_delay = isinstance(when.spec, EverySpec) and when.spec.fixed_delay
    policies = (
        *(task, zone_name, missed, grace, replay_max, replay_age, overlap, jitter, spread, start, end, max_runs),
        *(window, start_deadline, on_exhausted, terminal, priority, queue, retry, timeout, recovery, fixed_delay, http),
    )
    try:
        template = _template(*policies)
    except TypeError:  # something that cannot be hashed is about to be refused by name
        template = _template.__wrapped__(*policies)
    return replace(template, trigger=when.spec, body=body, gates=gates)


@lru_cache(200, typed=True)
def _template(
    task: str,
    zone_name: str,
    missed: Missed,
    grace: Duration,
    replay_max: int,
    replay_age: Duration,
    overlap: Overlap,
    jitter: Duration,
    spread: Duration,
    start: datetime | None,
    end: datetime | None,
    max_runs: int | None,
    window: WindowSpec | None,
    start_deadline: Duration | None,
    on_exhausted: OnExhausted,
    terminal: str,
    priority: Priority | str | int,
    queue: str,
    retry: RetryPolicy | None,
    timeout: Duration | None,
    recovery: Recovery | None,
    fixed_delay: bool,
    http: HttpTarget | None,
) -> ScheduleSpec:
    """Everything but trigger, body and gates: the same for most of the schedules that are made in bulk."""
    if max_runs is not None and (isinstance(max_runs, bool) or not isinstance(max_runs, int) or max_runs < 0):
        raise InvalidInput("max_runs", f"{max_runs!r} is not a whole number of at least 0", "None means no limit")
    if isinstance(replay_max, bool) or not isinstance(replay_max, int) or not 1 <= replay_max <= 10_000:
        raise InvalidInput("replay_max", f"{replay_max!r} is out of range", "Use a whole number from 1 to 10000")
    first = None if start is None else instant_ms(start, field="start")
    last = None if end is None else instant_ms(end, field="end")
    if first is not None and last is not None and last < first:
        raise InvalidInput("end", "lies before start", "Give an end after the start")
    if window is not None and not isinstance(window, WindowSpec):
        raise InvalidInput("window", f"{window!r} is not a window", 'Write for example Window("09:00-17:00")')
    options = RunOptions(
        timeout=None if timeout is None else duration_ms(timeout, field="timeout"),
        retry=checked_retry(retry),
        recovery=None if recovery is None else _recovery(recovery),
        window=window,
        start_deadline=None if start_deadline is None else duration_ms(start_deadline, field="start_deadline"),
        on_exhausted="pause" if choice(on_exhausted, ON_EXHAUSTED, field="on_exhausted") == "pause" else None,
        tz=None if zone_name == "UTC" else zone_name,
        rearm=fixed_delay or choice(terminal, TERMINAL, field="terminal") == "delete",
        http=http,
    )
    choice(missed, MISSED, field="missed")
    choice(overlap, OVERLAP, field="overlap")
    return ScheduleSpec(
        trigger=AtSpec(()),
        task=task,
        tz=zone_name,
        missed=missed,
        grace=duration_ms(grace, field="grace"),
        replay_max=replay_max,
        replay_age=duration_ms(replay_age, field="replay_age"),
        overlap=overlap,
        jitter=duration_ms(jitter, field="jitter"),
        spread=duration_ms(spread, field="spread"),
        start=first,
        end=last,
        max_runs=max_runs,
        priority=int(priority_of(priority)),
        queue=check_name(queue, field="queue"),
        options=None if options == RunOptions() else options,
        terminal="delete" if terminal == "delete" else "keep",
    )


def _recovery(value: str) -> Recovery:
    return "fail" if choice(value, RECOVERY, field="recovery") == "fail" else "retry"


def _trigger(
    name: str,
    now: Ms,
    tz: str,
    trigger: Trigger | None,
    cron: str | Cron | None,
    every: Duration | Every | None,
    at: datetime | Iterable[datetime] | At | None,
    delay: Duration | None,
) -> Trigger:
    given = {"trigger": trigger, "cron": cron, "every": every, "at": at, "delay": delay}
    named = [key for key, value in given.items() if value is not None]
    if len(named) != 1:
        said = f"{' and '.join(named)} are given" if named else "nothing says when"
        raise InvalidInput("trigger", said, "Give exactly one of cron, every, at, delay or trigger")
    if delay is not None:
        return At(to_datetime(now + duration_ms(delay, field="delay")))
    if every is not None:
        return every if isinstance(every, Every) else Every(every)
    if at is not None:
        return at if isinstance(at, At) else At(at)
    if isinstance(cron, str):
        return Cron(cron, tz=tz, hash_id=name)
    found = cron if cron is not None else trigger
    if not isinstance(found, Trigger):
        raise InvalidInput("trigger", f"{type(found).__name__} is not a trigger", "Give a Cron, Every or At")
    if isinstance(found.spec, CronSpec) and found.spec.hash_id is None:
        return Cron.from_spec(replace(found.spec, hash_id=name))
    return found


def digest_of(spec: ScheduleSpec) -> str:
    """Equal definitions have equal digests."""
    return body_id(_in_order.encode(spec))
