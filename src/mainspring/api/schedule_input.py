"""Translate the fields of a request into the definition of a new schedule, or into a change of a stored definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from mainspring.api.fault_collector import FaultCollector
from mainspring.api.long_durations import refuse_long_durations
from mainspring.api.parsing import escape_pointer
from mainspring.api.policy_input import amend_retry, or_default, parse_duration, parse_window
from mainspring.api.problems import Fault, invalid_field, invalid_request
from mainspring.api.schemas import ScheduleUpdate
from mainspring.app.internals import host_of, registry_of
from mainspring.model.change import Body
from mainspring.model.errors import InvalidInput, PayloadTooLarge
from mainspring.model.gate import Gate
from mainspring.model.http import (
    HTTP_TASK,
    HttpAgent,
    HttpTarget,
    check_agent_id,
    check_headers,
    check_method,
    check_url,
    origin_of,
)
from mainspring.model.ids import body_id, check_name, check_schedule_name
from mainspring.model.instant import duration_ms, format_duration, instant_ms, load_zone, to_datetime
from mainspring.model.policies import RetryPolicy
from mainspring.model.query_values import MASK
from mainspring.model.schedule import Schedule, ScheduleSpec
from mainspring.model.trigger import CronSpec, EverySpec, TriggerSpec
from mainspring.rules.definition import PolicyOptions, SpecTarget, amend, build_spec, check_policy, digest_of
from mainspring.rules.triggers import At, Cron, Every, compile_trigger
from mainspring.rules.triggers.base import LAST_MS
from mainspring.service.requests import ScheduleRequest

if TYPE_CHECKING:
    from mainspring.api.context import Api
    from mainspring.app.mainspring import Mainspring

#: Attribute of `ScheduleUpdate` → its name in JSON.
_TRIGGER_FIELDS = {"cron_expression": "cronExpression", "interval_ms": "intervalMs", "at": "at", "delay_ms": "delayMs"}
_CRON_FIELDS = {"dst_gap": "dstGap", "dst_overlap": "dstOverlap"}
_INTERVAL_FIELDS = {"anchor": "anchor", "fixed_delay": "fixedDelay", "first": "first"}
_AGENT_FIELDS = {"agent_id": "agentId", "http_method": "httpMethod", "headers": "headers"}
#: Attribute of `ScheduleUpdate` → option of `rules.definition` with a duration or an instant, which is converted.
_DURATION_OPTIONS = {
    "grace_ms": "grace",
    "replay_age_ms": "replay_age",
    "jitter_ms": "jitter",
    "spread_ms": "spread",
    "start_deadline_ms": "start_deadline",
    "timeout_ms": "timeout",
}
_INSTANT_OPTIONS = {"start_at": "start", "end_at": "end"}
#: Attributes of `ScheduleUpdate` whose name and value are those of an option of `rules.definition`.
_PLAIN_OPTIONS = tuple(
    name for name in ScheduleUpdate.__struct_fields__ if name in PolicyOptions.__annotations__ and name != "window"
)
#: Number of fires ahead among which the shortest interval is measured.
MEASURED_FIRES = 100


class ScheduleInput(Struct, frozen=True, kw_only=True):
    """A definition made from a request. Header values of an agent are kept apart: they must not get into the log."""

    want: ScheduleRequest
    #: New header values by name; None leaves all headers as they are.
    headers: dict[str, str] | None = None
    #: Names of the headers whose stored values stay: the request has *** in place of these values.
    kept_headers: tuple[str, ...] = ()

    def with_headers(self, stored: Mapping[str, str]) -> ScheduleRequest:
        """Return `want` with the header values of its agent: those of the request, and the kept ones from `stored`.

        `stored` maps header names to the values stored for the schedule; names outside `kept_headers` are ignored. If
        the request has no headers, return `want` unchanged.
        """
        options = self.want.spec.options
        if self.headers is None or options is None or options.http is None:
            return self.want
        old = {name.lower(): value for name, value in stored.items()}
        kept = {name: old[name.lower()] for name in self.kept_headers if name.lower() in old}
        return replace(self.want, agent=HttpAgent(options.http, self.headers | kept))


class _Call(Struct, frozen=True, kw_only=True):
    """What a schedule calls: the task `task`, or the HTTP agent `target`; `task` is then `HTTP_TASK`.

    `headers` are new header values by name; None leaves all headers as they are. `kept_headers` are the names of the
    headers whose stored values stay.
    """

    task: str
    target: HttpTarget | None = None
    headers: dict[str, str] | None = None
    kept_headers: tuple[str, ...] = ()


def parse_schedule(
    ms: Mainspring,
    name: str,
    given: ScheduleUpdate,
    payload: bytes | None,
    current: Schedule | None = None,
    *,
    http_retry: RetryPolicy | None = None,
    faults: Sequence[Fault] = (),
) -> ScheduleInput:
    """Return the definition that a request asks for. `given` holds the fields of its body that have the right type.

    `current` None: the request creates the schedule `name`. Else it edits the stored schedule `current`, whose other
    fields stay, and names it `name`. `payload` is the exact JSON text of the payload, None if the request has none.
    `http_retry` is the retry policy of a schedule that calls an HTTP agent and names no policy. `faults` are mistakes
    that were found in the request before. Raises: Refused, with all mistakes of the request; InvalidInput for options
    that do not go together.
    """
    collector = FaultCollector(faults)
    with collector.collecting():
        refuse_long_durations(given)
    old = None if current is None else current.spec
    full_name, now = registry_of(ms).full_name(name), host_of(ms).now()
    if (old is None or given.name is not UNSET) and "name" not in collector.wrong:
        with collector.collecting():
            check_schedule_name(name)
    if given.timezone is not UNSET:
        with collector.collecting():
            load_zone(given.timezone, field="tz")
    options: dict[str, Any] = {}
    with collector.collecting(unless_wrong=_TRIGGER_FIELDS.values()):
        known = replace(given, timezone=UNSET) if "timezone" in collector.wrong else given
        options = _parse_trigger(full_name, known, old, ms.tz)
    call = _Call(task="")
    with collector.collecting(unless_wrong=("agentUrl", "task")):
        call = _parse_call(given, old, collector)
        target, bodies, gates = _resolve_target(ms, call, given, payload, old)
    options |= _parse_policies(given, collector)
    with collector.collecting():
        options |= _parse_retry(ms, given, old, call.task, http_retry)
    collector.raise_if_any()
    if old is not None:
        spec = amend(old, target, options, name=full_name, now=now, default_tz=ms.tz)
    else:
        own = {"overlap": "allow_parallel"} if call.task == HTTP_TASK else {}
        spec = build_spec(target, {**own, **options}, name=full_name, now=now, default_tz=ms.tz)
    want = ScheduleRequest(
        ns=ms.settings.namespace,
        name=check_name(name),
        spec=spec,
        digest=current.digest if current is not None and current.app else digest_of(spec),
        bodies=bodies,
        gates=gates,
        by="api",
        delay=None if "delay" not in options else duration_ms(options["delay"], field="delay"),
    )
    return ScheduleInput(want=want, headers=call.headers, kept_headers=call.kept_headers)


def _resolve_target(
    ms: Mainspring, call: _Call, given: ScheduleUpdate, payload: bytes | None, old: ScheduleSpec | None
) -> tuple[SpecTarget, tuple[Body, ...], tuple[Gate, ...]]:
    """Return what the definition calls, and the payload (one or none) and the gates that must be stored with it.

    `payload`: the JSON text of the payload, used for an HTTP agent; a task's arguments come from `given`. `old`: the
    definition that is edited; None for a new schedule. An edit that keeps the task keeps its gates, so none are
    returned to store, and its payload unless `given` has one: such an edit needs no code of the task. An HTTP agent has
    no gates. Raises: UnknownTask.
    """
    keeps_task = old is not None and call.task == old.task
    if old is not None and keeps_task and given.payload is UNSET:
        return SpecTarget(call.task, old.body, old.gates, call.target), (), ()  # needs no code of the task
    gates: tuple[Gate, ...] = ()
    if call.task != HTTP_TASK and not keeps_task:
        gates = registry_of(ms).find_task(call.task).gates()
    gate_names = old.gates if old is not None and keeps_task else tuple(gate.name for gate in gates)
    body = _parse_body(ms, call.task, given, payload)
    body_name = None if body is None else body.id
    return SpecTarget(call.task, body_name, gate_names, call.target), () if body is None else (body,), gates


# ── when ────────────────────────────────────────────────────────────────────


def _parse_trigger(full_name: str, given: ScheduleUpdate, old: ScheduleSpec | None, default_tz: str) -> dict[str, Any]:
    """Return those of the options `trigger`, `delay` and `tz` that the request sets: name → value.

    A new schedule always gets `tz`. `full_name` is the schedule's name with its namespace. `old` is the definition that
    is edited; None for a new schedule. A field of the trigger that the request leaves out keeps its value in `old`,
    if the trigger there is of the same kind. `default_tz` is the zone of a new schedule that names none.
    """
    before = None if old is None else old.trigger
    tz = or_default(given.timezone, default_tz if old is None else old.tz)
    options: dict[str, Any] = {} if given.timezone is UNSET and old is not None else {"tz": tz}
    kind = _named_kind(given) or _kind_of(before)
    _refuse_unless(kind == "cron_expression", given, _CRON_FIELDS, "cronExpression")
    _refuse_unless(kind == "interval_ms", given, _INTERVAL_FIELDS, "intervalMs")
    fields = (*_TRIGGER_FIELDS, *_CRON_FIELDS, *_INTERVAL_FIELDS)
    if all(getattr(given, field) is UNSET for field in fields):
        return options
    match kind:
        case "delay_ms":
            return {**options, "delay": parse_duration(given.delay_ms)}
        case "cron_expression":
            return {**options, "trigger": _parse_cron(given, before, full_name, tz)}
        case "interval_ms":
            return {**options, "trigger": _parse_interval(given, before)}
    texts: Any = [given.at] if isinstance(given.at, str) else given.at
    times = [to_datetime(instant_ms(text, field=f"at.{number}")) for number, text in enumerate(texts)]
    return {**options, "trigger": At(times)}


def _named_kind(given: ScheduleUpdate) -> str | None:
    """Return the name of the field in `given` that says when to fire; None without one. Raises: Refused for several."""
    named = [field for field in _TRIGGER_FIELDS if getattr(given, field) is not UNSET]
    if len(named) > 1:
        fields = " and ".join(_TRIGGER_FIELDS[field] for field in named)
        raise invalid_field(f"#/{_TRIGGER_FIELDS[named[1]]}", f"{fields} are given", "Give one of them")
    return named[0] if named else None


def _parse_cron(given: ScheduleUpdate, old: TriggerSpec | None, full_name: str, tz: str) -> Cron:
    """Return the cron trigger of a request. A cron trigger `old` gives the fields that the request omits.

    `full_name` is the schedule's name with its namespace: the text from which a new trigger derives the values of `H`.
    """
    before = old if isinstance(old, CronSpec) else CronSpec("", hash_id=full_name)
    return Cron(
        or_default(given.cron_expression, before.expr),
        tz,
        or_default(given.dst_gap, before.gap),
        or_default(given.dst_overlap, before.overlap),
        before.hash_id,
    )


def _parse_interval(given: ScheduleUpdate, old: TriggerSpec | None) -> Every:
    """Return the interval trigger of a request. An interval trigger `old` gives the fields that the request omits."""
    before = old if isinstance(old, EverySpec) else EverySpec(0)
    kept = timedelta(milliseconds=before.interval)
    interval = kept if given.interval_ms is UNSET else parse_duration(given.interval_ms)
    anchor = None if before.anchor is None else to_datetime(before.anchor)
    if given.anchor is not UNSET:
        anchor = _parse_instant(given.anchor, "anchor")
    first = before.first if given.first is UNSET else given.first
    return Every(interval, anchor, or_default(given.fixed_delay, before.fixed_delay), first)


def _kind_of(trigger: TriggerSpec | None) -> str:
    """Return the name of the field in `ScheduleUpdate` that sets a trigger of this kind. Raises: Refused for None."""
    match trigger:
        case None:
            fields = ", ".join(_TRIGGER_FIELDS.values())
            raise invalid_request(
                [Fault("the schedule has no trigger", pointer="#", suggestion=f"Give one of {fields}")]
            )
        case CronSpec():
            return "cron_expression"
        case EverySpec():
            return "interval_ms"
    return "at"


def _refuse_unless(fits: bool, given: ScheduleUpdate, fields: Mapping[str, str], kind: str) -> None:
    """Raise Refused if the request has one of `fields`, but the schedule does not have the kind of trigger they need.

    `fits` is True if the schedule has that kind of trigger. `fields` maps attributes of `given` to their JSON names.
    `kind` is the JSON name of the field that sets this kind of trigger, for the error text.
    """
    for field, wire in fields.items():
        if getattr(given, field) is not UNSET and not fits:
            raise invalid_field(f"#/{wire}", f"belongs to {kind}", f"Leave it out, or give {kind}")


# ── what ────────────────────────────────────────────────────────────────────


def _parse_call(given: ScheduleUpdate, old: ScheduleSpec | None, collector: FaultCollector) -> _Call:
    """Return what the schedule calls: the task or HTTP agent that the request names, else what `old` calls.

    `old` is the definition that is edited; None for a new schedule. Raises: Refused, also if the request names both a
    task and an agent, or a new schedule has neither; InvalidInput.
    """
    before = old.options.http if old is not None and old.options is not None else None
    if given.task is not UNSET and given.agent_url is not UNSET:
        raise invalid_field("#/task", "agentUrl and task are both given", "Give the one that is meant")
    if given.task == HTTP_TASK:
        raise invalid_field("#/task", "task 'http' cannot be named", "Give agentUrl instead")
    if given.agent_url is UNSET and (given.task is not UNSET or before is None):
        return _parse_task(given, old)
    return _parse_agent(given, before, collector)


def _parse_agent(given: ScheduleUpdate, before: HttpTarget | None, collector: FaultCollector) -> _Call:
    """Return the call of the HTTP agent that the request names. `before` is the agent before the edit, if any.

    `before` gives the fields that the request leaves out. But the stored header values are dropped if the request
    changes scheme, host or port of the URL. `collector` keeps the mistakes.
    """
    target = before or HttpTarget("")
    moved = False
    with collector.collecting():
        if given.agent_url is not UNSET:  # `***` in its query stands for a stored value, until the definition is stored
            target = replace(target, url=check_url(given.agent_url, field="agentUrl"), query_kept=False)
        moved = before is not None and origin_of(target.url) != origin_of(before.url)
    with collector.collecting():
        target = replace(target, method=check_method(or_default(given.http_method, target.method), field="httpMethod"))
    with collector.collecting():
        target = replace(target, agent_id=check_agent_id(or_default(given.agent_id, target.agent_id), field="agentId"))
    if given.headers is not UNSET:
        with collector.collecting():
            return _parse_headers(given.headers or {}, target, moved=moved)
    if moved and target.header_names:  # header values that were meant for one host are never sent to another
        target = replace(target, headers_ref=None, header_names=())
    return _Call(task=HTTP_TASK, target=target)


def _parse_task(given: ScheduleUpdate, old: ScheduleSpec | None) -> _Call:
    """Return the call of the task that the request names, else of the task in `old`.

    Raises: Refused if the request names no task and `old` is None, or for a field that belongs to an HTTP agent.
    """
    for field, wire in _AGENT_FIELDS.items():
        if getattr(given, field) is not UNSET:
            raise invalid_field(f"#/{wire}", "belongs to an HTTP agent", "Give agentUrl as well")
    if given.task is not UNSET:
        return _Call(task=given.task)
    if old is None:
        raise invalid_request(
            [Fault("the schedule has neither agentUrl nor task", pointer="#", suggestion="Give one of them")]
        )
    return _Call(task=old.task)


def _parse_headers(given: dict[str, str], target: HttpTarget, *, moved: bool) -> _Call:
    """Return the call of the agent `target` with the headers `given`: name → value, or *** to keep the stored value.

    `moved`: the edit changes scheme, host or port of the URL. *** is then refused, because stored values are never sent
    to another place. Raises: Refused, also for *** without a stored value; InvalidInput.
    """
    headers = check_headers(given, field="headers")
    kept = tuple(name for name, value in headers.items() if value == MASK)
    known = {name.lower() for name in target.header_names}
    for name in kept:
        pointer = f"#/headers/{escape_pointer(name)}"
        if name.lower() not in known:
            raise invalid_field(pointer, "*** stands for a stored value, and none is stored", "Send the value")
        if moved:
            raise invalid_field(pointer, "the stored value is not sent to a new host", "Send the value again")
    fresh = {name: value for name, value in headers.items() if name not in kept}
    target = replace(target, headers_ref=None, header_names=tuple(headers))
    return _Call(task=HTTP_TASK, target=target, headers=fresh, kept_headers=kept)


def _parse_body(ms: Mainspring, task: str, given: ScheduleUpdate, payload: bytes | None) -> Body | None:
    """Return the payload of a request as it is stored; None if the request has none.

    For an HTTP agent, it is the exact JSON text `payload`. For a task, it is the encoded arguments in `given.payload`.
    """
    if task == HTTP_TASK:
        return http_body(ms, payload)
    return task_body(ms, task, None if given.payload is UNSET else given.payload)


def http_body(ms: Mainspring, payload: bytes | None) -> Body | None:
    """Return the body of calls to an HTTP agent: `payload`, the JSON text as the caller wrote it.

    Return None if `payload` is None or the text `null`. Raises: PayloadTooLarge.
    """
    if payload is None or payload == b"null":
        return None
    limit = ms.settings.payload_limit
    if len(payload) > limit:
        raise PayloadTooLarge("payload", f"{len(payload)} bytes are more than the limit of {limit}")
    return Body(body_id(payload), payload.decode())


def task_body(ms: Mainspring, task: str, payload: Any) -> Body | None:
    """Return the arguments of a call of the task named `task`, encoded for storage; None if there are none.

    `payload` is a JSON object with arguments by name, an array with arguments by position, or None for no arguments.
    Raises: Refused for any other type; InvalidInput if they do not fit the task; PayloadTooLarge; UnknownTask.
    """
    if payload is not None and not isinstance(payload, dict | list):
        raise invalid_field("#/payload", "is neither an object nor an array", "Give arguments by name or by place")
    args = tuple(payload) if isinstance(payload, list) else ()
    kwargs = payload if isinstance(payload, dict) else {}
    try:
        return registry_of(ms).find_task(task).signature.encode(args, kwargs, ms.settings.payload_limit)
    except PayloadTooLarge:
        raise
    except InvalidInput as error:
        raise InvalidInput("payload", f"{error.field}: {error.problem}", error.fix) from None


# ── how ─────────────────────────────────────────────────────────────────────


def _parse_policies(given: ScheduleUpdate, collector: FaultCollector) -> dict[str, Any]:
    """Return the policies in the request: name of an option of `rules.definition` → value; None for a JSON null.

    A policy with a mistake is left out, and `collector` keeps the mistake.
    """
    options = {field: getattr(given, field) for field in _PLAIN_OPTIONS if getattr(given, field) is not UNSET}
    for field, option in _DURATION_OPTIONS.items():
        value = getattr(given, field)
        if value is not UNSET:
            options[option] = None if value is None else parse_duration(value)
    for field, option in _INSTANT_OPTIONS.items():
        value = getattr(given, field)
        if value is not UNSET:
            with collector.collecting():
                options[option] = _parse_instant(value, option)
    if given.window is not UNSET:
        with collector.collecting():
            options["window"] = None if given.window is None else parse_window(given.window)
    for option, value in options.items():
        with collector.collecting():
            check_policy(option, value)
    return options


def _parse_retry(
    ms: Mainspring, given: ScheduleUpdate, old: ScheduleSpec | None, task: str, http_retry: RetryPolicy | None
) -> dict[str, Any]:
    """Return {"retry": policy} for a new schedule, or if the request has a policy; else {}: the policy in `old` stays.

    A policy in the request changes the fields that it has. A null, or no policy for a new schedule, sets the default:
    `http_retry` if the schedule calls an HTTP agent, else None, and its runs then follow the task's policy.
    """
    default = http_retry if task == HTTP_TASK else None
    if given.retry_policy is UNSET:
        return {"retry": default} if old is None else {}
    if given.retry_policy is None:
        return {"retry": default}
    before = old.options.retry if old is not None and old.options is not None else None
    base = before or default or default_retry(ms, task) or RetryPolicy()
    return {"retry": amend_retry(base, given.retry_policy)}


def default_retry(ms: Mainspring, task: str) -> RetryPolicy | None:
    """Return the retry policy of the task, which a schedule without a policy follows; None if it is not registered."""
    known = ms.tasks.get(task)
    return None if known is None else known.options.retry


def check_min_interval(api: Api, spec: ScheduleSpec) -> None:
    """Raise Refused if two of the next `MEASURED_FIRES` fires are closer together than `limits.min_interval` allows."""
    if api.min_interval is None:
        return
    now = api.host.now()
    fires = compile_trigger(spec.trigger, now).fires_ms(now, LAST_MS, MEASURED_FIRES)
    if any(later - earlier < api.min_interval for earlier, later in pairwise(fires)):
        raise invalid_field(
            f"#/{_TRIGGER_FIELDS[_kind_of(spec.trigger)]}",
            f"fires more often than every {format_duration(api.min_interval)}",
            "Fire less often; limits.min_interval sets this",
        )


def exact_payload(data: bytes) -> bytes | None:
    """Return the exact text of the field `payload` in `data`, a body that is valid JSON; None without this field."""
    raw = msgspec.json.decode(data, type=_WithPayload).payload
    return None if raw is UNSET else bytes(raw).strip()


class _WithPayload(Struct):
    payload: msgspec.Raw | msgspec.UnsetType = UNSET


def _parse_instant(value: Any, field: str) -> datetime | None:
    return None if value is None else to_datetime(instant_ms(value, field=field))
