"""Definitions of schedules: turn the options that a user writes into a `ScheduleSpec`, or apply them to an old one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Literal, TypedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.model.errors import InvalidInput
from mainspring.model.http import HttpTarget
from mainspring.model.ids import body_id, check_name
from mainspring.model.instant import Duration, Ms, duration_ms, instant_ms, load_zone, to_datetime
from mainspring.model.option_hints import suggest_option
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
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec, First, TriggerSpec
from mainspring.rules.triggers import At, Cron, Every, Trigger
from mainspring.rules.windows import resolve_zone

TERMINAL = ("keep", "delete")
#: Upper bound of the option `replay_max`, in fires.
MAX_REPLAYED_FIRES = 10_000
_deterministic_encoder = msgspec.json.Encoder(order="deterministic")


class PolicyOptions(TypedDict, total=False):
    """The options of a schedule other than its trigger, as a user writes them: how its fires become runs.

    In a new schedule, an option that is absent or None gets the default of `ScheduleSpec` or `RunOptions`. In an edit,
    an absent option keeps its old value, and None sets the default. The default of `tz` is the zone of a given `Cron`
    object (in an edit without a trigger: of the old cron trigger), else the app's zone.
    """

    #: Zone of the schedule, in which its cron expression is read.
    tz: str | None
    #: What becomes of missed fires: no run ("skip"), one run for all of them ("catch_up_once"), or one run for each
    #: ("replay_all").
    missed: Missed
    #: A fire counts as missed if it is planned more than this after its fire time.
    grace: Duration
    #: With "replay_all", at most this number of missed fires get a run: the newest that are at most `replay_age` old.
    #: At most this number of due fires that were not missed get a run, too: the newest.
    replay_max: int
    #: With "replay_all", missed fires older than this get no run.
    replay_age: Duration
    #: What becomes of a fire while a run of the schedule is open: it is skipped ("forbid"); its run waits, unless
    #: another one waits already ("queue_one"); its run waits ("queue_all"); the open runs are cancelled and it runs
    #: ("cancel_running"); it runs beside them ("allow_parallel").
    overlap: Overlap
    #: Each run is due some delay after its fire time, shorter than this and different from run to run.
    jitter: Duration
    #: All runs are due one delay after their fire times, shorter than this and different from schedule to schedule.
    spread: Duration
    #: First instant at which the schedule may fire.
    start: datetime | None
    #: Last instant at which the schedule may fire.
    end: datetime | None
    #: The schedule finishes after this number of fires.
    max_runs: int | None
    #: Runs may begin only inside this window. A window without a zone is in the schedule's zone.
    window: WindowSpec | None
    #: A run that has not begun this long after its due time is skipped.
    start_deadline: Duration | None
    #: What the schedule does when a run has failed for good.
    on_exhausted: OnExhausted
    #: What becomes of the schedule when it has finished.
    terminal: Literal["keep", "delete"]
    #: Of the runs that are due, those with a higher priority start first.
    priority: Priority | PriorityName | int
    #: Queue of the runs: only instances with this queue in their `queues` execute them.
    queue: str
    #: How often and after which delays a failed run is tried again: `Retry(…)`.
    retry: RetryPolicy | None
    #: Time limit of one attempt.
    timeout: Duration | None
    #: Whether a run whose worker crashed is run again ("retry") or lost ("fail").
    recovery: Recovery | None


class TriggerOptions(TypedDict, total=False):
    """The options that give a schedule its trigger. A new schedule needs exactly one of them.

    An edit may have none, which keeps the old trigger.
    """

    #: A trigger object: `Cron(…)`, `Every(…)` or `At(…)`.
    trigger: Trigger
    #: A cron expression: "0 9 * * Mon-Fri".
    cron: str | Cron
    #: An interval: "10m". The first fire is one interval after the schedule is created.
    every: Duration | Every
    #: With `every`: "now" fires when the schedule is created, not one interval later.
    first: First | None
    #: An instant or several, each with a zone.
    at: datetime | Iterable[datetime] | At
    #: A single fire, this long after the schedule is created or edited.
    delay: Duration


class WhenAndHow(TriggerOptions, PolicyOptions, total=False):
    """All options of a schedule: its trigger, and how its fires become runs."""


#: Options of which a new schedule has exactly one.
TRIGGER_OPTIONS = tuple(name for name in TriggerOptions.__annotations__ if name != "first")
SCHEDULE_OPTIONS = tuple(WhenAndHow.__annotations__)


class SpecTarget(Struct, frozen=True, gc=False):
    """What the runs of a schedule execute: a task with its payload, or the built-in call of an HTTP agent."""

    task: str
    #: The id of the payload; None: the task gets no arguments.
    body: str | None = None
    #: Names of the gates that the runs must pass in addition to the schedule's own gate.
    gates: tuple[str, ...] = ()
    #: The request, if the task is the built-in `http`.
    http: HttpTarget | None = None


def build_spec(
    target: SpecTarget, options: Mapping[str, Any], *, name: str, now: Ms, default_tz: str = "UTC"
) -> ScheduleSpec:
    """Return the definition of a new schedule that runs `target`, from the `WhenAndHow` options that a user wrote.

    `name` is the schedule's name with its namespace; the values of `H` in a cron expression are derived from it. The
    option `delay` counts from `now`. `default_tz` is the zone if the options name none. Raises `InvalidInput`, which
    names the option at fault and shows a valid value.
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
    """Return the definition `spec` with the `WhenAndHow` options in `changes` applied; options not in `changes` stay.

    `target` replaces task, payload, gates and request in any case. A policy that is changed to None gets its
    default, and `tz` changed to None gets the zone of the trigger, else `default_tz`. A new zone also applies to
    the old cron trigger, and to the old window if that was in the schedule's zone, unless `changes` replaces them.
    `name` is the schedule's name with its namespace; the values of `H` in a new cron expression are derived from
    it. The option `delay` counts from `now`. Raises `InvalidInput`, which names the option at fault and shows a
    valid value.
    """
    check_options(changes)
    has_trigger = any(key in changes for key in TRIGGER_OPTIONS)
    tz = spec.tz
    if "tz" in changes:
        own_zone = _zone_of_trigger(changes) if has_trigger else _zone_of(spec.trigger)
        tz = changes["tz"] or own_zone or default_tz
        load_zone(tz, field="tz")
    trigger = spec.trigger
    if changes.get("first") is not None and not has_trigger:
        raise _first_without_interval()
    if has_trigger:
        trigger = parse_trigger(changes, name=name, now=now, tz=tz).spec
    elif "tz" in changes and isinstance(trigger, CronSpec):
        trigger = replace(trigger, tz=tz)
    policies = {key: value for key, value in changes.items() if key in _POLICIES}
    amended = _with_policies(spec, policies, tz=tz, http=target.http, fixed_delay=_has_fixed_delay(trigger))
    return replace(amended, trigger=trigger, task=target.task, body=target.body, gates=target.gates)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` if a key is no option of a schedule. The error suggests the nearest existing option."""
    wrong = next((key for key in options if key not in SCHEDULE_OPTIONS), None)
    if wrong is not None:
        raise InvalidInput(wrong, "is not an option of a schedule", suggest_option(wrong, SCHEDULE_OPTIONS))


def check_policy(option: str, value: Any) -> None:
    """Raise `InvalidInput` if `value` is not valid for an option of `PolicyOptions`. None is valid: the default."""
    parser = _SPEC_PARSERS.get(option) or _RUN_PARSERS.get(option)
    if parser is not None and value is not None:
        parser(value)


def digest_of(spec: ScheduleSpec) -> str:
    """Return a hash of a definition. A redeploy compares it to see whether the code's declaration has changed."""
    return body_id(_deterministic_encoder.encode(spec))


# ── policies ────────────────────────────────────────────────────────────────


def _parse_max_runs(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(
            "max_runs", f"{value!r} is not a number of runs", "Use a whole number of at least 0, or None for no limit"
        )
    return value


def _parse_replay_max(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_REPLAYED_FIRES:
        raise InvalidInput(
            "replay_max", f"{value!r} is out of range", f"Use a whole number from 1 to {MAX_REPLAYED_FIRES}"
        )
    return value


def _parse_window(value: Any) -> WindowSpec:
    if not isinstance(value, WindowSpec):
        raise InvalidInput("window", f"{value!r} is not a window", 'Write for example Window("09:00-17:00")')
    return value


def _parse_on_exhausted(value: Any) -> OnExhausted | None:
    """Return "pause", or None for "continue", which is the default and is not stored."""
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
#: The definition in which every policy has its default. Four values are computed, so that they are not the objects in
#: the struct's defaults. Why: the encoder leaves out a field if its value is the default's own object, and stored
#: digests were made with these four fields written out.
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
    """Return a definition with these policies. The caller sets trigger, task, payload and gates, which are empty.

    The result is cached, because schedules that are created in bulk mostly have equal policies.
    """
    return _with_policies(_DEFAULTS, policies, tz=tz, http=http, fixed_delay=fixed_delay)


def _with_policies(
    spec: ScheduleSpec, policies: Mapping[str, Any], *, tz: str, http: HttpTarget | None, fixed_delay: bool
) -> ScheduleSpec:
    """Return `spec` with the given zone, request and policies; policies that are not given stay.

    The values of `policies` are as a user wrote them; this function parses them. `fixed_delay`: True if the next fire
    depends on the end of a run, so that each run must touch the schedule when it ends. Raises `InvalidInput`.
    """
    fields = _parse_fields(policies, _SPEC_PARSERS, _DEFAULTS)
    amended = replace(spec, tz=tz, **fields)
    run_fields = _parse_fields(policies, _RUN_PARSERS, _DEFAULT_OPTIONS)
    before = spec.options or _DEFAULT_OPTIONS
    if "window" in run_fields:
        run_fields["window"] = resolve_zone(run_fields["window"], tz)
    elif before.window is not None and before.window.tz == spec.tz != tz:
        run_fields["window"] = replace(before.window, tz=tz)  # it was in the schedule's zone, and stays in it
    if ("start" in fields or "end" in fields) and _ends_before_start(amended):
        raise InvalidInput("end", "lies before start", "Give an end after the start")
    options = replace(
        before,
        tz=None if tz == "UTC" else tz,
        rearm=fixed_delay or amended.terminal == "delete",
        http=http,
        **run_fields,
    )
    return replace(amended, options=None if options == _DEFAULT_OPTIONS else options)


def _parse_fields(
    policies: Mapping[str, Any], parsers: Mapping[str, Callable[[Any], Any]], defaults: Struct
) -> dict[str, Any]:
    """Return field name → stored value for each policy that has a parser. None becomes the value in `defaults`."""
    return {
        name: getattr(defaults, name) if policies[name] is None else parse(policies[name])
        for name, parse in parsers.items()
        if name in policies
    }


def _ends_before_start(spec: ScheduleSpec) -> bool:
    return spec.start is not None and spec.end is not None and spec.end < spec.start


# ── triggers ────────────────────────────────────────────────────────────────


def parse_trigger(options: Mapping[str, Any], *, name: str, now: Ms, tz: str) -> Trigger:
    """Return the trigger that one of the `TriggerOptions` in `options` gives. Options of other kinds are not read.

    `name` is the text from which the values of `H` in a cron expression are derived, `tz` the zone of a cron text. The
    option `delay` counts from `now`. Raises `InvalidInput` unless exactly one of these options has a valid value.
    """
    named = [key for key in TRIGGER_OPTIONS if options.get(key) is not None]
    if len(named) != 1:
        problem = f"{' and '.join(named)} are given" if named else "the schedule has no trigger"
        raise InvalidInput("trigger", problem, "Give exactly one of cron, every, at, delay or trigger")
    value, first = options[named[0]], options.get("first")
    if first is not None:
        if named[0] != "every":
            raise _first_without_interval()
        given = (value if isinstance(value, Every) else Every(value)).spec
        anchor = None if given.anchor is None else to_datetime(given.anchor)
        return Every(timedelta(milliseconds=given.interval), anchor, given.fixed_delay, first)
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


def _first_without_interval() -> InvalidInput:
    return InvalidInput(
        "first",
        "belongs to an interval",
        'Give it with every="1h"; to run another schedule at once, call ms.trigger(name)',
    )


def _with_hash_id(value: Any, name: str) -> Trigger:
    """Return the trigger `value`. A cron trigger without a `hash_id` gets the schedule's name as its `hash_id`.

    Raises `InvalidInput` if the value is not a trigger.
    """
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
    """Return the time zone of the `Cron` object that is given as an option, None if no such object is given."""
    given = [options.get(key) for key in ("cron", "trigger")]
    return next((one.spec.tz for one in given if isinstance(one, Cron)), None)
