"""Schedule definition: parse the options that a user writes into a `ScheduleSpec`, and lay changes over one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Literal, TypedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.errors import InvalidInput, suggest_nearest
from mainspring.model.http import HttpTarget
from mainspring.model.ids import body_id, check_name
from mainspring.model.instant import Duration, Ms, duration_ms, instant_ms, load_zone, to_datetime
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
    check_choice,
    check_retry,
    parse_priority,
)
from mainspring.model.schedule import ScheduleSpec
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec, TriggerSpec
from mainspring.rules.triggers import At, Cron, Every, Trigger

TERMINAL = ("keep", "delete")
MAX_REPLAYED_FIRES = 10_000
_deterministic_encoder = msgspec.json.Encoder(order="deterministic")


class PolicyOptions(TypedDict, total=False):
    """How a schedule behaves. An option that is absent or None has the default of `ScheduleSpec` or `RunOptions`."""

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


class TriggerOptions(TypedDict, total=False):
    """When a schedule fires: exactly one of these."""

    trigger: Trigger
    cron: str | Cron
    every: Duration | Every
    at: datetime | Iterable[datetime] | At
    delay: Duration


class WhenAndHow(TriggerOptions, PolicyOptions, total=False):
    """When a schedule fires, and how it behaves."""


TRIGGER_OPTIONS = tuple(TriggerOptions.__annotations__)
SCHEDULE_OPTIONS = tuple(WhenAndHow.__annotations__)

#: Names that other schedulers use, and the option of ours that means the same.
SYNONYMS = {
    "timezone": "tz",
    "zone": "tz",
    "seconds": "every",
    "interval": "every",
    "retries": "retry",
    "coalesce": "missed",
}


class SpecTarget(Struct, frozen=True, gc=False):
    """What the runs of a schedule execute: a task, the id of its payload, its gates; or an HTTP agent."""

    task: str
    body: str | None = None
    gates: tuple[str, ...] = ()
    http: HttpTarget | None = None


def build_spec(
    target: SpecTarget, options: Mapping[str, Any], *, name: str, now: Ms, default_tz: str = "UTC"
) -> ScheduleSpec:
    """Return the definition of a new schedule from the `WhenAndHow` options that a user wrote.

    `name` is the schedule's name with its namespace: it seeds `H` in cron expressions. A delay counts from `now`.
    Raises `InvalidInput` with the option at fault and a valid value.
    """
    check_options(options)
    tz = options.get("tz") or _zone_of_trigger(options) or default_tz
    load_zone(tz, field="tz")
    trigger = parse_trigger(options, name=name, now=now, tz=tz)
    policies = {key: value for key, value in options.items() if key in _POLICIES and value is not None}
    try:
        template = _template(tz, target.http, _has_fixed_delay(trigger.spec), **policies)
    except TypeError:  # a value that cannot be hashed; its parser refuses it by name
        template = _template.__wrapped__(tz, target.http, _has_fixed_delay(trigger.spec), **policies)
    return replace(template, trigger=trigger.spec, task=target.task, body=target.body, gates=target.gates)


def amend(
    spec: ScheduleSpec,
    target: SpecTarget,
    changes: Mapping[str, Any],
    *,
    name: str,
    now: Ms,
    default_tz: str = "UTC",
) -> ScheduleSpec:
    """Return `spec` with `changes` (`WhenAndHow` options) laid over it; options that are not named stay as they are.

    A change to None restores the default. Another time zone also moves a cron trigger that is not itself changed.
    Raises `InvalidInput` with the option at fault and a valid value.
    """
    check_options(changes)
    has_trigger = any(key in changes for key in TRIGGER_OPTIONS)
    tz = spec.tz
    if "tz" in changes:
        own_zone = _zone_of_trigger(changes) if has_trigger else _zone_of(spec.trigger)
        tz = changes["tz"] or own_zone or default_tz
        load_zone(tz, field="tz")
    trigger = spec.trigger
    if has_trigger:
        trigger = parse_trigger(changes, name=name, now=now, tz=tz).spec
    elif "tz" in changes and isinstance(trigger, CronSpec):
        trigger = replace(trigger, tz=tz)
    policies = {key: value for key, value in changes.items() if key in _POLICIES}
    amended = _with_policies(spec, policies, tz=tz, http=target.http, fixed_delay=_has_fixed_delay(trigger))
    return replace(amended, trigger=trigger, task=target.task, body=target.body, gates=target.gates)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for a name that is no option of a schedule, with the option that was probably meant."""
    wrong = next((key for key in options if key not in SCHEDULE_OPTIONS), None)
    if wrong is not None:
        raise InvalidInput(wrong, "is not an option of a schedule", suggest_option(wrong, SCHEDULE_OPTIONS))


def suggest_option(wrong: str, options: Iterable[str]) -> str:
    """Return a hint with the option that `wrong` resembles or is a synonym of, or an empty string."""
    return f"Did you mean {SYNONYMS[wrong]!r}?" if wrong in SYNONYMS else suggest_nearest(wrong, sorted(options))


def digest_of(spec: ScheduleSpec) -> str:
    """Return the digest of a definition; equal definitions have equal digests."""
    return body_id(_deterministic_encoder.encode(spec))


# ── policies ────────────────────────────────────────────────────────────────


def _parse_max_runs(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput("max_runs", f"{value!r} is not a whole number of at least 0", "None means no limit")
    return value


def _parse_replay_max(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_REPLAYED_FIRES:
        raise InvalidInput("replay_max", f"{value!r} is out of range", "Use a whole number from 1 to 10000")
    return value


def _parse_window(value: Any) -> WindowSpec:
    if not isinstance(value, WindowSpec):
        raise InvalidInput("window", f"{value!r} is not a window", 'Write for example Window("09:00-17:00")')
    return value


def _parse_on_exhausted(value: Any) -> OnExhausted | None:
    return "pause" if check_choice(value, ON_EXHAUSTED, field="on_exhausted") == "pause" else None


def _parse_priority(value: Any) -> int:
    return int(parse_priority(value))


#: Option → parser of a value that is not None. The result is stored in the field of `ScheduleSpec` with that name.
_SPEC_PARSERS: dict[str, Callable[[Any], Any]] = {
    "max_runs": _parse_max_runs,
    "replay_max": _parse_replay_max,
    "start": partial(instant_ms, field="start"),
    "end": partial(instant_ms, field="end"),
    "terminal": partial(check_choice, allowed=TERMINAL, field="terminal"),
    "missed": partial(check_choice, allowed=MISSED, field="missed"),
    "overlap": partial(check_choice, allowed=OVERLAP, field="overlap"),
    "grace": partial(duration_ms, field="grace"),
    "replay_age": partial(duration_ms, field="replay_age"),
    "jitter": partial(duration_ms, field="jitter"),
    "spread": partial(duration_ms, field="spread"),
    "priority": _parse_priority,
    "queue": partial(check_name, field="queue"),
}
#: Option → parser of a value that is not None. The result is stored in the field of `RunOptions` with that name.
_RUN_PARSERS: dict[str, Callable[[Any], Any]] = {
    "window": _parse_window,
    "timeout": partial(duration_ms, field="timeout"),
    "retry": check_retry,
    "recovery": partial(check_choice, allowed=RECOVERY, field="recovery"),
    "start_deadline": partial(duration_ms, field="start_deadline"),
    "on_exhausted": _parse_on_exhausted,
}
_POLICIES = frozenset({*_SPEC_PARSERS, *_RUN_PARSERS})
_DEFAULT_OPTIONS = RunOptions()
#: Computed, so that these are other objects than the struct's own defaults: the encoder leaves out a field only if its
#: value is the very object of the default, and stored digests were made with these four fields written out.
_DEFAULTS = ScheduleSpec(
    trigger=AtSpec(()),
    task="",
    grace=duration_ms("60s", field="grace"),
    replay_max=int("1000"),
    replay_age=duration_ms("24h", field="replay_age"),
    priority=int(Priority.NORMAL),
)


@lru_cache(200, typed=True)
def _template(tz: str, http: HttpTarget | None, fixed_delay: bool, **policies: Any) -> ScheduleSpec:
    """Return everything of a definition but trigger, task, payload and gates: schedules made in bulk share it."""
    return _with_policies(_DEFAULTS, policies, tz=tz, http=http, fixed_delay=fixed_delay)


def _with_policies(
    spec: ScheduleSpec, policies: Mapping[str, Any], *, tz: str, http: HttpTarget | None, fixed_delay: bool
) -> ScheduleSpec:
    fields = _parse_fields(policies, _SPEC_PARSERS, _DEFAULTS)
    amended = replace(spec, tz=tz, **fields)
    if ("start" in fields or "end" in fields) and _ends_before_start(amended):
        raise InvalidInput("end", "lies before start", "Give an end after the start")
    options = replace(
        spec.options or _DEFAULT_OPTIONS,
        tz=None if tz == "UTC" else tz,
        rearm=fixed_delay or amended.terminal == "delete",
        http=http,
        **_parse_fields(policies, _RUN_PARSERS, _DEFAULT_OPTIONS),
    )
    return replace(amended, options=None if options == _DEFAULT_OPTIONS else options)


def _parse_fields(
    policies: Mapping[str, Any], parsers: Mapping[str, Callable[[Any], Any]], defaults: Struct
) -> dict[str, Any]:
    """Return the stored value of each policy that has a parser; None becomes the default."""
    return {
        name: getattr(defaults, name) if policies[name] is None else parse(policies[name])
        for name, parse in parsers.items()
        if name in policies
    }


def _ends_before_start(spec: ScheduleSpec) -> bool:
    return spec.start is not None and spec.end is not None and spec.end < spec.start


# ── triggers ────────────────────────────────────────────────────────────────


def parse_trigger(options: Mapping[str, Any], *, name: str, now: Ms, tz: str) -> Trigger:
    """Return the trigger that exactly one of the `TriggerOptions` names; a delay counts from `now`."""
    named = [key for key in TRIGGER_OPTIONS if options.get(key) is not None]
    if len(named) != 1:
        problem = f"{' and '.join(named)} are given" if named else "nothing says when"
        raise InvalidInput("trigger", problem, "Give exactly one of cron, every, at, delay or trigger")
    value = options[named[0]]
    match named[0]:
        case "delay":
            return At(to_datetime(now + duration_ms(value, field="delay")))
        case "every":
            return value if isinstance(value, Every) else Every(value)
        case "at":
            return value if isinstance(value, At) else At(value)
        case "cron" if isinstance(value, str):
            return Cron(value, tz=tz, hash_id=name)
    return _with_hash_id(value, name)


def _with_hash_id(value: Any, name: str) -> Trigger:
    """Return a trigger object; a cron trigger without a seed for `H` gets the schedule's name as its seed."""
    if not isinstance(value, Trigger):
        raise InvalidInput("trigger", f"{type(value).__name__} is not a trigger", "Give a Cron, Every or At")
    if isinstance(value.spec, CronSpec) and value.spec.hash_id is None:
        return Cron.from_spec(replace(value.spec, hash_id=name))
    return value


def _has_fixed_delay(trigger: TriggerSpec) -> bool:
    return isinstance(trigger, EverySpec) and trigger.fixed_delay


def _zone_of(trigger: TriggerSpec) -> str | None:
    return trigger.tz if isinstance(trigger, CronSpec) else None


def _zone_of_trigger(options: Mapping[str, Any]) -> str | None:
    """Return the time zone of the `Cron` object among the options, if there is one."""
    given = [options.get(key) for key in ("cron", "trigger")]
    return next((one.spec.tz for one in given if isinstance(one, Cron)), None)
