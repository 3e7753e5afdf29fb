"""Event encoding: events to the JSON text in the log's column `data`, and log rows back to typed events."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from mainspring.model.events import EVENT_BASE_FIELDS, EVENT_TYPES, Event, RunScheduled

_encoder = msgspec.json.Encoder()


@cache
def _own_fields(cls: type[Event]) -> tuple[tuple[str, ...], tuple[Any, ...], Callable[[Event], tuple[Any, ...]]]:
    """Return the names of the fields that an event class adds, their defaults, and a function that reads them all.

    The default NODEFAULT means that the field is always written.
    """
    own = [field for field in msgspec.structs.fields(cls) if field.name not in EVENT_BASE_FIELDS]
    names = tuple(field.name for field in own)
    read = (
        attrgetter(*names, "seq", "seq") if names else lambda event: ()
    )  # two more names: attrgetter of one name returns no tuple
    return names, tuple(field.default for field in own), read


def _own_data(event: Event) -> dict[str, Any]:
    """Return the fields that the event's class adds, without those that have their defaults."""
    names, defaults, read = _own_fields(type(event))
    data = {}
    for name, default, value in zip(names, defaults, read(event), strict=False):
        if value is not default and (default is msgspec.NODEFAULT or value != default):
            data[name] = value
    return data


def encode_data(event: Event) -> str | None:
    """Return the fields that the event's class adds as JSON text, without defaults; None if all have their defaults."""
    data = _own_data(event)
    return _encoder.encode(data).decode() if data else None


def differs_only_in_id_and_body(event: RunScheduled, model: RunScheduled) -> bool:
    """Return True if two events are equal in all fields but run id and payload id.

    False if only one of them has a payload.
    """
    if (event.body is None) is not (model.body is None):
        return False
    return replace(event, run_id=model.run_id, body=model.body) == model


class BulkEventEncoder:
    """Encodes the RunScheduled events of a bulk insert, with the results of `encode_data` but in less time.

    It encodes one event and reuses the text for events that differ from it only in run id and payload id.
    """

    def __init__(self) -> None:
        self._model: RunScheduled | None = None
        self._data: dict[str, Any] = {}
        self._text = ""

    def can_reuse(self, event: RunScheduled) -> bool:
        """Return True if the event differs from the last event of `encode_first` only in run id and payload id."""
        return self._model is not None and differs_only_in_id_and_body(event, self._model)

    def encode_first(self, event: RunScheduled) -> str:
        """Return the data of an event as JSON text, and keep both for `encode_next`."""
        self._model, self._data = event, _own_data(event)
        self._text = _encoder.encode(self._data).decode()
        return self._text

    def encode_next(self, event: RunScheduled) -> str:
        """Return the data of an event as JSON text; `can_reuse` must be True for the event."""
        assert self._model is not None
        if event.body == self._model.body:
            return self._text
        return _encoder.encode({**self._data, "body": event.body}).decode()


def decode_event(type_name: str, columns: dict[str, Any], data: str | bytes | None) -> Event:
    """Return the typed event of a log row: `columns` are the fields that every event has, `data` the others as JSON."""
    cls = EVENT_TYPES[type_name]
    fields = msgspec.json.decode(data) if data else {}
    return msgspec.convert({**fields, **columns}, cls)
