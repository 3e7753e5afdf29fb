"""Compare the body of a PUT with the schedule as a GET shows it. A field with an equal value counts as left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mainspring.api.parsing import json_text
from mainspring.api.policy_input import parse_window
from mainspring.api.problems import Fault
from mainspring.api.schemas import RetryBody, ScheduleUpdate, ScheduleView, WindowBody
from mainspring.api.views import window_view
from mainspring.model.errors import InvalidInput
from mainspring.model.instant import duration_ms, instant_ms, isoformat

_INSTANT_FIELDS = ("anchor", "start_at", "end_at")
_DURATION_FIELDS = (
    "interval_ms",
    "grace_ms",
    "replay_age_ms",
    "jitter_ms",
    "spread_ms",
    "start_deadline_ms",
    "timeout_ms",
)
#: Read-only fields whose value grows when a schedule fires or is edited. A PUT may hold the older value that its caller
#: has read.
_ADVANCING = ("nextRun", "updatedAt", "fired", "revision")


def changed_fields(view: ScheduleView, wanted: ScheduleUpdate) -> ScheduleUpdate:
    """Return `wanted`, the body of a PUT, without the fields whose values equal those in `view`, the present schedule.

    If `wanted` has several of the fields cronExpression, intervalMs, at and delayMs, all of them stay, so that
    `parse_schedule` refuses the request.
    """
    found: dict[str, Any] = {}
    when = [name for name in ("cron_expression", "interval_ms", "at", "delay_ms") if getattr(wanted, name) is not UNSET]
    for field in msgspec.structs.fields(ScheduleUpdate):
        value = getattr(wanted, field.name)
        if value is UNSET:
            continue
        shown = getattr(view, field.name, UNSET)
        if isinstance(value, WindowBody) and value.timezone is UNSET:
            value = msgspec.structs.replace(value, timezone=view.timezone)
        if (len(when) > 1 and field.name in when) or shown is UNSET or not _is_same(field.name, value, shown):
            found[field.name] = getattr(wanted, field.name)
    if "timezone" in found and wanted.window is not UNSET:
        found["window"] = wanted.window  # else the window would follow the schedule to its new zone
    return ScheduleUpdate(**found)


def _is_same(name: str, value: Any, shown: Any) -> bool:
    """Return True if a request's `value` for the field `name` is equivalent to `shown`, the value that a GET shows."""
    try:
        plain = _normalize(name, value)
    except InvalidInput:
        return False  # the parser of the schedule refuses it, with the reason
    if isinstance(value, RetryBody):
        return all(getattr(shown, key) == item for key, item in plain.items())
    if name == "headers":
        return bool((plain or {}) == shown)
    return bool(plain == to_plain(shown))


def _normalize(name: str, value: Any) -> Any:
    """Return the value that a request gives to the field `name`, as JSON types in the form in which a GET shows it.

    Example: the duration "30s" becomes 30000. Raises: InvalidInput for a value that cannot be parsed.
    """
    if value is None:
        return None
    if name in _INSTANT_FIELDS:
        return isoformat(instant_ms(value))
    if name == "at":
        return [isoformat(instant_ms(text)) for text in ([value] if isinstance(value, str) else value)]
    if name in _DURATION_FIELDS and isinstance(value, str):
        return duration_ms(value)
    if isinstance(value, WindowBody):
        return msgspec.to_builtins(window_view(parse_window(value)))
    return _normalize_retry(value) if isinstance(value, RetryBody) else value


def _normalize_retry(body: RetryBody) -> dict[str, Any]:
    """Return the fields that a request's retry policy sets: attribute → value, with durations in milliseconds."""
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    return {
        name: duration_ms(item) if isinstance(item, str) and name.endswith("_ms") else item
        for name, item in fields.items()
        if item is not UNSET
    }


def to_plain(shown: Any) -> Any:
    """Return the value of a field of a view as JSON types; a payload in `msgspec.Raw` is decoded."""
    if isinstance(shown, msgspec.Raw):
        return msgspec.json.decode(shown)
    return msgspec.to_builtins(shown) if isinstance(shown, Struct) else shown


def find_read_only_faults(given: Mapping[str, Any], view: ScheduleView, names: frozenset[str]) -> list[Fault]:
    """Return a fault for each read-only field in the body `given` of a PUT that has another value than in `view`.

    `names` are the JSON names of the read-only fields. A field in `_ADVANCING`, such as `fired`, may also have an
    earlier value, which the caller may have read before.
    """
    shown = msgspec.json.decode(msgspec.json.encode(view))
    faults: list[Fault] = []
    for name in names & given.keys():
        value, present = given[name], shown.get(name)
        if value == present or (name in _ADVANCING and _is_earlier(value, present)):
            continue
        text = f"cannot be set; it is {json_text(present)}"
        faults.append(Fault(text, pointer=f"#/{name}", suggestion="Leave it out"))
    return sorted(faults, key=lambda fault: str(fault.pointer))


def _is_earlier(value: Any, present: Any) -> bool:
    """Return True if `value`, from a request, is not greater or later than `present`, the value of the field now.

    Both are numbers, or instants as text. `present` None, for a schedule without a next run: True for any text. A text
    that is no instant, and any other type, gives False.
    """
    if isinstance(value, bool):
        return False
    if isinstance(value, int) and isinstance(present, int):
        return value <= present
    if isinstance(value, str):
        try:
            return present is None or instant_ms(value) <= instant_ms(str(present))
        except InvalidInput:
            return False
    return False
