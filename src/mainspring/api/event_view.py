"""Event view: an event of the log as JSON types, for the event stream of the API."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from mainspring.app.run_view import decode_json
from mainspring.model.event_codec import encode_data
from mainspring.model.events import Event, FiresElided
from mainspring.model.instant import isoformat
from mainspring.model.masked_events import mask_event

#: Names under which the data of events hold instants, at any depth.
_INSTANTS = frozenset(
    {
        "anchor",
        "began_at",
        "created_at",
        "cursor",
        "due_at",
        "fire_time",
        "next_at",
        "next_attempt_at",
        "ready_at",
        "since",
        "times",
        "until",
        "updated_at",
    }
)
#: Names of instants in the definition of a schedule; elsewhere they have another meaning.
_INSTANTS_OF_SPEC = frozenset({"start", "end"})
_INSTANTS_OF_SPAN = frozenset({"after", "through"})


def event_view(event: Event) -> dict[str, Any]:
    """Return an event as JSON types: the fields that every event has, and under `data` the fields of its type.

    Instants are RFC 3339 text. The result of a run is the value that its handler returned.
    """
    own = encode_data(mask_event(event))
    data = {} if own is None else msgspec.json.decode(own)
    view = show_instants(event, data, rename=_camel)
    for name in ("result", "answer"):
        if name in data:
            view[name] = decode_json(data[name])
    return {
        "seq": event.seq,
        "type": type(event).__name__,
        "at": isoformat(event.at),
        "scheduleId": event.schedule_id,
        "executionId": event.run_id,
        "attempt": event.attempt,
        "instance": event.owner,
        "actor": event.actor,
        "data": view,
    }


def show_instants(event: Event, data: dict[str, Any], *, rename: Callable[[str], str] = str) -> dict[str, Any]:
    """Return `data`, the fields of an event as JSON types, with instants as RFC 3339 text and names as by `rename`."""
    instants = _INSTANTS | (_INSTANTS_OF_SPAN if isinstance(event, FiresElided) else frozenset())
    found: dict[str, Any] = _convert(data, instants, rename)
    return found


def _convert(value: Any, instants: frozenset[str], rename: Callable[[str], str]) -> Any:
    """Return a JSON value with its names as by `rename`, and the numbers under `instants` as RFC 3339 text."""
    if isinstance(value, list):
        return [_convert(item, instants, rename) for item in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, item in value.items():
        inner = instants | _INSTANTS_OF_SPEC if name == "spec" else instants - _INSTANTS_OF_SPEC
        found[rename(name)] = _format_instants(item) if name in instants else _convert(item, inner, rename)
    return found


def _format_instants(value: Any) -> Any:
    """Return an instant, or each of a list of instants, as RFC 3339 text; anything else unchanged."""
    if isinstance(value, list):
        return [_format_instants(item) for item in value]
    return isoformat(value) if isinstance(value, int) else value


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)
