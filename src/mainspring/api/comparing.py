"""What a PUT really changes: fields as they are shown and sent back count as not given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mainspring.api.drafting import window_spec
from mainspring.api.problems import Fault, faulty
from mainspring.api.schemas import RetryBody, ScheduleUpdate, ScheduleView, WindowBody
from mainspring.api.views import window_view
from mainspring.model.errors import InvalidInput
from mainspring.model.instant import duration_ms, instant_ms, isoformat

_INSTANTS = ("anchor", "start_at", "end_at")
_DURATIONS = ("interval_ms", "grace_ms", "replay_age_ms", "jitter_ms", "spread_ms", "start_deadline_ms", "timeout_ms")
#: These go on by themselves: as they are now, or as they were when the caller read them.
_MOVING = ("nextRun", "updatedAt", "fired", "revision")


def changes(view: ScheduleView, wanted: ScheduleUpdate) -> ScheduleUpdate:
    """The fields that differ from what is shown; two ways to say when stay two, so that they are refused."""
    found: dict[str, Any] = {}
    when = [name for name in ("cron_expression", "interval_ms", "at", "delay_ms") if getattr(wanted, name) is not UNSET]
    for field in msgspec.structs.fields(ScheduleUpdate):
        value = getattr(wanted, field.name)
        if value is UNSET:
            continue
        shown = getattr(view, field.name, UNSET)
        if (len(when) > 1 and field.name in when) or shown is UNSET or not _same(field.name, value, shown):
            found[field.name] = value
    return ScheduleUpdate(**found)


def _same(name: str, value: Any, shown: Any) -> bool:
    try:
        plain = _plain(name, value)
    except InvalidInput:
        return False  # what cannot be read is refused where it is read
    if isinstance(value, RetryBody):
        return all(shown_value(shown, key) == item for key, item in plain.items())
    if name == "headers":
        return bool((plain or {}) == shown)
    return bool(plain == plain_of(shown))


def shown_value(shown: Any, name: str) -> Any:
    """A field of a shown struct."""
    return getattr(shown, name)


def _plain(name: str, value: Any) -> Any:
    """A given value as it would be shown."""
    if value is None:
        return None
    if name in _INSTANTS:
        return isoformat(instant_ms(value))
    if name == "at":
        return [isoformat(instant_ms(text)) for text in ([value] if isinstance(value, str) else value)]
    if name in _DURATIONS and isinstance(value, str):
        return duration_ms(value)
    if isinstance(value, WindowBody):
        return msgspec.to_builtins(window_view(window_spec(value)))
    if isinstance(value, RetryBody):
        given = {field: getattr(value, field) for field in value.__struct_fields__}
        return {
            field: duration_ms(item) if isinstance(item, str) and field.endswith("_ms") else item
            for field, item in given.items()
            if item is not UNSET
        }
    return value


def plain_of(shown: Any) -> Any:
    """A shown value in plain types."""
    if isinstance(shown, msgspec.Raw):
        return msgspec.json.decode(shown)
    return msgspec.to_builtins(shown) if isinstance(shown, Struct) else shown


def judge_read_only(given: Mapping[str, Any], view: ScheduleView, names: frozenset[str]) -> None:
    """What cannot be set may be sent back as it was read."""
    shown = msgspec.json.decode(msgspec.json.encode(view))
    faults: list[Fault] = []
    for name in names & given.keys():
        value, present = given[name], shown.get(name)
        if value == present or (name in _MOVING and _earlier(value, present)):
            continue
        why = "a schedule keeps its name" if name == "name" else "cannot be set"
        faults.append(Fault(f"{why}; it is {present!r}", pointer=f"#/{name}", suggestion="Leave it out"))
    if faults:
        raise faulty(sorted(faults, key=lambda fault: str(fault.pointer)))


def _earlier(value: Any, present: Any) -> bool:
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
