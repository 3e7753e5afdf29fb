"""From a request's fields to a definition: checked by the core's own rules, laid over what is there."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from mainspring.api.problems import Fault, faulty, invalid
from mainspring.api.reading import escaped
from mainspring.api.schemas import DurationMs, RetryBody, ScheduleUpdate, WindowBody
from mainspring.api.views import MASK
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
    host_and_port,
)
from mainspring.model.ids import body_id, check_name
from mainspring.model.instant import Ms, duration_ms, format_duration, instant_ms, to_datetime
from mainspring.model.policies import Retry, RetryPolicy, RunOptions, WindowSpec
from mainspring.model.schedule import Schedule, ScheduleSpec
from mainspring.model.trigger import AtSpec, CronSpec, EverySpec, TriggerSpec
from mainspring.rules.definition import build_spec, digest_of
from mainspring.rules.triggers import At, Cron, Every, Trigger, compile_trigger
from mainspring.rules.triggers.base import LAST_MS
from mainspring.rules.windows import Window
from mainspring.service import Definition

if TYPE_CHECKING:
    from mainspring.api.base import Api
    from mainspring.app import Mainspring

_WHEN = {"cron_expression": "cronExpression", "interval_ms": "intervalMs", "at": "at", "delay_ms": "delayMs"}
_CRON_ONLY = {"dst_gap": "dstGap", "dst_overlap": "dstOverlap"}
_EVERY_ONLY = {"anchor": "anchor", "fixed_delay": "fixedDelay"}
_AGENT_ONLY = {"agent_id": "agentId", "http_method": "httpMethod", "headers": "headers"}
#: Duration on the wire → name in the core; null takes the optional ones away.
_DURATIONS = {
    "grace_ms": "grace",
    "replay_age_ms": "replay_age",
    "jitter_ms": "jitter",
    "spread_ms": "spread",
    "start_deadline_ms": "start_deadline",
    "timeout_ms": "timeout",
}
#: So many fires ahead are looked at for the shortest interval between two.
PACE_FIRES = 100
_WORDS = ("missed", "replay_max", "overlap", "max_runs", "on_exhausted", "terminal", "priority", "queue", "recovery")


class Draft(Struct, kw_only=True):
    """What a request wants: the definition, and the header values that belong beside it (None: as they are).

    `keeps` names those whose values stay.
    """

    want: Definition
    headers: dict[str, str] | None = None
    keeps: tuple[str, ...] = ()

    def with_headers(self, before: Mapping[str, str]) -> Definition:
        """The definition with all header values it is to have; `before` has those that stay."""
        options = self.want.spec.options
        if self.headers is None or options is None or options.http is None:
            return self.want
        old = {name.lower(): value for name, value in before.items()}
        kept = {name: old[name.lower()] for name in self.keeps if name.lower() in old}
        return replace(self.want, agent=HttpAgent(options.http, self.headers | kept))


def drafted(
    ms: Mainspring,
    name: str,
    given: ScheduleUpdate,
    payload: bytes | None,
    current: Schedule | None = None,
    *,
    http_retry: RetryPolicy | None = None,
) -> Draft:
    """A definition of what is given over what is there; `payload` is its exact JSON text."""
    old = None if current is None else current.spec
    tz = _known(given.timezone, ms.tz if old is None else old.tz)
    when, delay = _trigger(ms, name, given, tz, None if old is None else old.trigger)
    task, target, headers, keeps = _target(given, old)
    same_task = old is not None and task == old.task
    gates: tuple[Gate, ...] = () if task == HTTP_TASK or same_task else ms._task(task).gates()
    body = _body(ms, task, given, payload)
    keep_body = old is not None and same_task and given.payload is UNSET
    values = _policies(given, old, task)
    if delay is not None:
        values["delay"] = delay
    else:
        values["trigger"] = when
    spec = build_spec(
        name=f"{ms.settings.namespace}/{name}",
        task=task,
        now=ms.now(),
        default_tz=ms.tz,
        tz=tz,
        body=old.body if old is not None and keep_body else None if body is None else body.id,
        gates=old.gates if old is not None and same_task else tuple(gate.name for gate in gates),
        retry=_retry(ms, given, old, task, http_retry),
        http=target,
        **values,
    )
    if old is not None and old.options is not None and old.options.max_crashes is not None:
        spec = replace(spec, options=replace(spec.options or RunOptions(), max_crashes=old.options.max_crashes))
    want = Definition(
        ns=ms.settings.namespace,
        name=check_name(name),
        spec=spec,
        digest=current.digest if current is not None and current.app else digest_of(spec),
        bodies=() if body is None or keep_body else (body,),
        gates=gates,
        by="api",
        delay=None if delay is None else duration_ms(delay, field="delay"),
    )
    return Draft(want=want, headers=headers, keeps=keeps)


# ── when ────────────────────────────────────────────────────────────────────


def _trigger(
    ms: Mainspring, name: str, given: ScheduleUpdate, tz: str, old: TriggerSpec | None
) -> tuple[Trigger | None, timedelta | str | None]:
    named = [field for field in _WHEN if getattr(given, field) is not UNSET]
    if len(named) > 1:
        said = " and ".join(_WHEN[field] for field in named)
        raise invalid(f"#/{_WHEN[named[1]]}", f"{said} are given", "Give one of them")
    if not named and old is None:
        raise faulty([Fault("nothing says when", pointer="#", suggestion=f"Give one of {', '.join(_WHEN.values())}")])
    kind = named[0] if named else _kind_of(old)
    _only(given, _CRON_ONLY, kind == "cron_expression", "cronExpression")
    _only(given, _EVERY_ONLY, kind == "interval_ms", "intervalMs")
    if kind == "delay_ms":
        return None, _duration(given.delay_ms)
    if kind == "cron_expression":
        cron = old if isinstance(old, CronSpec) else CronSpec("")
        made: Trigger = Cron(
            _known(given.cron_expression, cron.expr),
            tz,
            _known(given.dst_gap, cron.gap),
            _known(given.dst_overlap, cron.overlap),
            f"{ms.settings.namespace}/{name}" if not isinstance(old, CronSpec) else old.hash_id,
        )
        return made, None
    if kind == "interval_ms":
        every = old if isinstance(old, EverySpec) else EverySpec(0)
        interval = (
            timedelta(milliseconds=every.interval) if given.interval_ms is UNSET else _duration(given.interval_ms)
        )
        anchor = _moment(given.anchor, every.anchor, "anchor")
        return Every(interval, anchor, _known(given.fixed_delay, every.fixed_delay)), None
    if given.at is UNSET:
        assert isinstance(old, AtSpec)
        return At.from_spec(old), None
    texts = [given.at] if isinstance(given.at, str) else given.at
    times = [to_datetime(instant_ms(text, field=f"at.{number}")) for number, text in enumerate(texts)]
    return At(times), None


def _kind_of(old: TriggerSpec | None) -> str:
    match old:
        case CronSpec():
            return "cron_expression"
        case EverySpec():
            return "interval_ms"
    return "at"


def _only(given: ScheduleUpdate, fields: dict[str, str], fits: bool, kind: str) -> None:
    for field, wire in fields.items():
        if getattr(given, field) is not UNSET and not fits:
            raise invalid(f"#/{wire}", f"belongs to {kind}", f"Leave it out, or give {kind}")


# ── what ────────────────────────────────────────────────────────────────────


def _target(
    given: ScheduleUpdate, old: ScheduleSpec | None
) -> tuple[str, HttpTarget | None, dict[str, str] | None, tuple[str, ...]]:
    """The task, whom an HTTP one calls, its new header values, and the names of those that stay."""
    before = old.options.http if old is not None and old.options is not None else None
    if given.task is not UNSET and given.agent_url is not UNSET:
        raise invalid("#/task", "agentUrl and task are both given", "Give the one that is meant")
    if given.task == HTTP_TASK:
        raise invalid("#/task", "the task 'http' is given by an address", "Give agentUrl instead")
    if given.agent_url is UNSET and (given.task is not UNSET or before is None):
        for field, wire in _AGENT_ONLY.items():
            if getattr(given, field) is not UNSET:
                raise invalid(f"#/{wire}", "belongs to an HTTP agent", "Give agentUrl as well")
        if given.task is not UNSET:
            return given.task, None, None, ()
        if old is None:
            raise faulty([Fault("nothing says what to call", pointer="#", suggestion="Give agentUrl or task")])
        return old.task, None, None, ()
    target = before or HttpTarget("")
    url = check_url(_known(given.agent_url, target.url), field="agentUrl")
    moved = before is not None and _origin(url) != _origin(before.url)
    target = replace(
        target,
        url=url,
        method=check_method(_known(given.http_method, target.method), field="httpMethod"),
        agent_id=check_agent_id(_known(given.agent_id, target.agent_id), field="agentId"),
    )
    if given.headers is UNSET:
        if moved and target.header_names:  # what was meant for one host is never sent to another
            target = replace(target, headers_ref=None, header_names=())
        return HTTP_TASK, target, None, ()
    headers = check_headers(given.headers or {}, field="headers")
    keeps = tuple(name for name, value in headers.items() if value == MASK)
    known = {name.lower() for name in target.header_names}
    for name in keeps:
        if name.lower() not in known:
            raise invalid(f"#/headers/{escaped(name)}", "is only the mask of a value", "Give the value")
        if moved:
            raise invalid(f"#/headers/{escaped(name)}", "was meant for another host", "Give the value again")
    fresh = {name: value for name, value in headers.items() if name not in keeps}
    return HTTP_TASK, replace(target, headers_ref=None, header_names=tuple(headers)), fresh, keeps


def _body(ms: Mainspring, task: str, given: ScheduleUpdate, payload: bytes | None) -> Body | None:
    if task == HTTP_TASK:
        return http_body(ms, payload)
    return task_body(ms, task, None if given.payload is UNSET else given.payload)


def http_body(ms: Mainspring, payload: bytes | None) -> Body | None:
    """An agent's request body: the payload as it was written."""
    if payload is None or payload == b"null":
        return None
    limit = ms.settings.payload_limit
    if len(payload) > limit:
        raise PayloadTooLarge("payload", f"{len(payload)} bytes are more than the limit of {limit}")
    return Body(body_id(payload), payload.decode())


def task_body(ms: Mainspring, task: str, payload: Any) -> Body | None:
    """A task's arguments: an object gives them by name, an array by place."""
    if payload is not None and not isinstance(payload, dict | list):
        raise invalid("#/payload", "is neither an object nor an array", "Give arguments by name or by place")
    args = tuple(payload) if isinstance(payload, list) else ()
    kwargs = payload if isinstance(payload, dict) else {}
    try:
        return ms._task(task).signature.encode(args, kwargs, ms.settings.payload_limit)
    except PayloadTooLarge:
        raise
    except InvalidInput as error:
        raise InvalidInput("payload", f"{error.field}: {error.problem}", error.fix) from None


# ── how ─────────────────────────────────────────────────────────────────────


def _policies(given: ScheduleUpdate, old: ScheduleSpec | None, task: str) -> dict[str, Any]:
    """The rest of what `build_spec` takes: what was there, then what is given."""
    values: dict[str, Any] = {"overlap": "allow_parallel"} if task == HTTP_TASK else {}
    if old is not None:
        values = _as_they_are(old)
    for field in _WORDS:
        value = getattr(given, field)
        if value is not UNSET:
            values[field] = value
    for field, name in _DURATIONS.items():
        value = getattr(given, field)
        if value is not UNSET:
            values[name] = None if value is None else _duration(value)
    for field, name in (("start_at", "start"), ("end_at", "end")):
        value = getattr(given, field)
        if value is not UNSET:
            values[name] = _moment(value, None, name)
    if given.window is not UNSET:
        values["window"] = None if given.window is None else window_spec(given.window)
    return values


def _as_they_are(old: ScheduleSpec) -> dict[str, Any]:
    options = old.options or RunOptions()
    return {
        "missed": old.missed,
        "grace": timedelta(milliseconds=old.grace),
        "replay_max": old.replay_max,
        "replay_age": timedelta(milliseconds=old.replay_age),
        "overlap": old.overlap,
        "jitter": timedelta(milliseconds=old.jitter),
        "spread": timedelta(milliseconds=old.spread),
        "start": None if old.start is None else to_datetime(old.start),
        "end": None if old.end is None else to_datetime(old.end),
        "max_runs": old.max_runs,
        "priority": old.priority,
        "queue": old.queue,
        "terminal": old.terminal,
        "window": options.window,
        "start_deadline": _delta(options.start_deadline),
        "on_exhausted": options.on_exhausted or "continue",
        "timeout": _delta(options.timeout),
        "recovery": options.recovery,
    }


def _retry(
    ms: Mainspring, given: ScheduleUpdate, old: ScheduleSpec | None, task: str, for_http: RetryPolicy | None
) -> RetryPolicy | None:
    """An HTTP schedule has the policy of the service written into it; one of a task may leave it to the task."""
    before = old.options.retry if old is not None and old.options is not None else None
    otherwise = for_http if task == HTTP_TASK else None
    if given.retry_policy is UNSET:
        return otherwise if old is None else before
    if given.retry_policy is None:
        return otherwise
    return retry_policy(given.retry_policy, before or otherwise or default_retry(ms, task) or RetryPolicy())


def default_retry(ms: Mainspring, task: str) -> RetryPolicy | None:
    """What a task does where the schedule says nothing."""
    known = ms.tasks.get(task)
    return None if known is None else known.options.retry


def retry_policy(body: RetryBody, base: RetryPolicy) -> RetryPolicy:
    """A policy of what is given over another."""
    backoff = _known(body.backoff, base.backoff)
    linear = backoff == "linear"
    return Retry(
        max_attempts=_known(body.max_attempts, base.max_attempts),
        backoff=backoff,
        initial=_duration(_known(body.initial_delay_ms, base.initial)),
        base=base.base if linear else _known(body.backoff_multiplier, base.base),
        multiplier=_known(body.backoff_multiplier, base.multiplier) if linear else base.multiplier,
        max_delay=_duration(_known(body.max_delay_ms, base.max_delay)),
        jitter=_known(body.jitter, base.jitter),
    )


def window_spec(body: WindowBody) -> WindowSpec:
    """A window of the core."""
    return Window(*body.segments, weekdays=tuple(body.weekdays), tz=body.timezone)


def check_pace(api: Api, spec: ScheduleSpec) -> None:
    """The operator's `limits.min_interval`: the next fires must not come faster."""
    if api.min_interval is None:
        return
    now = api.ms.now()
    fires = compile_trigger(spec.trigger, now).fires_ms(now, LAST_MS, PACE_FIRES)
    if any(later - earlier < api.min_interval for earlier, later in pairwise(fires)):
        raise invalid(
            f"#/{_WHEN[_kind_of(spec.trigger)]}",
            f"fires more often than every {format_duration(api.min_interval)}",
            "Fire less often; limits.min_interval sets this",
        )


def exact_payload(data: bytes) -> bytes | None:
    """The payload's own bytes in a body that was read already; None when it has none."""
    raw = msgspec.json.decode(data, type=_WithPayload).payload
    return None if raw is UNSET else bytes(raw).strip()


class _WithPayload(Struct):
    payload: msgspec.Raw | msgspec.UnsetType = UNSET


def _origin(url: str) -> tuple[str, str, int]:
    return url.partition(":")[0].lower(), *host_and_port(url)


def _known(value: Any, otherwise: Any) -> Any:
    return otherwise if value is UNSET else value


def _duration(value: DurationMs | Any) -> timedelta | str:
    return timedelta(milliseconds=value) if isinstance(value, int) else str(value)


def _delta(value: Ms | None) -> timedelta | None:
    return None if value is None else timedelta(milliseconds=value)


def _moment(value: Any, otherwise: Ms | None, field: str) -> datetime | None:
    if value is UNSET:
        return None if otherwise is None else to_datetime(otherwise)
    return None if value is None else to_datetime(instant_ms(value, field=field))
