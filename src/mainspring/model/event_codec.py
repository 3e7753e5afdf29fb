"""Event encoding: turn events into the JSON text of the log's column `data`, and log rows back into typed events."""

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
    """Return the fields that an event class adds: their names, their defaults, and a function that reads their values.

    NODEFAULT stands for a field that has no default and is always written. The function may return further values after
    those of the fields.
    """
    own = [field for field in msgspec.structs.fields(cls) if field.name not in EVENT_BASE_FIELDS]
    names = tuple(field.encode_name for field in own)
    read = (
        attrgetter(*(field.name for field in own), "seq", "seq") if names else lambda event: ()
    )  # two more names: attrgetter of one name returns no tuple
    return names, tuple(field.default for field in own), read


def _own_data(event: Event) -> dict[str, Any]:
    """Return field name → value for the fields that the event's class adds, except those with their default value."""
    names, defaults, read = _own_fields(type(event))
    data = {}
    for name, default, value in zip(names, defaults, read(event), strict=False):
        if value is not default and (default is msgspec.NODEFAULT or value != default):
            data[name] = value
    return data


def encode_data(event: Event) -> str | None:
    """Return the fields that the event's class adds as JSON text, except default values; None if no field is left."""
    data = _own_data(event)
    return _encoder.encode(data).decode() if data else None


def differs_only_in_id_and_body(event: RunScheduled, model: RunScheduled) -> bool:
    """Return True if two events are equal in all fields except run id and payload id.

    Return False if only one of the events has a payload.
    """
    if (event.body is None) is not (model.body is None):
        return False
    return replace(event, run_id=model.run_id, body=model.body) == model


class BulkEventEncoder:
    """Encoder for the RunScheduled events of a bulk insert. It returns the text of `encode_data`, in less time.

    It encodes one event, and reuses the text for later events that differ from it only in run id and payload id.
    """

    def __init__(self) -> None:
        self._model: RunScheduled | None = None
        self._data: dict[str, Any] = {}
        self._text = ""

    def can_reuse(self, event: RunScheduled) -> bool:
        """Return True if the event may be passed to `encode_next`.

        It must differ from the event of the last `encode_first` only in run id and payload id.
        """
        return self._model is not None and differs_only_in_id_and_body(event, self._model)

    def encode_first(self, event: RunScheduled) -> str:
        """Return the data of an event as JSON text, and keep event and text for later calls of `encode_next`."""
        self._model, self._data = event, _own_data(event)
        self._text = _encoder.encode(self._data).decode()
        return self._text

    def encode_next(self, event: RunScheduled) -> str:
        """Return the data of an event for which `can_reuse` is True, as JSON text."""
        assert self._model is not None
        if event.body == self._model.body:
            return self._text
        return _encoder.encode({**self._data, "body": event.body}).decode()


def decode_event(type_name: str, columns: dict[str, Any], data: str | bytes | None) -> Event:
    """Return the typed event of a log row.

    `type_name` is the name of its class. `columns` are the fields that every event has. `data` holds the fields that
    the class adds, as JSON text; None if all of these have their defaults.
    """
    cls = EVENT_TYPES[type_name]
    fields = msgspec.json.decode(data) if data else {}
    return msgspec.convert({**fields, **columns}, cls)
