"""Refuse durations that are too long in requests, where a text such as "99999999w" has no limit of its own."""

from __future__ import annotations

from msgspec import Struct

from mainspring.api.problems import invalid_field
from mainspring.api.schemas import MAX_DURATION_MS
from mainspring.model.instant import duration_ms, format_duration


def refuse_long_durations(body: Struct, pointer: str = "#") -> None:
    """Raise Refused, with the field, if a request's body has a duration as text that is over `MAX_DURATION_MS`.

    Fields of durations end in `_ms`. Bodies inside the body are checked, too. `pointer`: the place of the body. Why: an
    instant so far ahead is no datetime, and the request would fail with an error inside the service.
    """
    for field, wire_name in zip(body.__struct_fields__, body.__struct_encode_fields__, strict=True):
        value = getattr(body, field)
        place = f"{pointer}/{wire_name}"
        if isinstance(value, Struct):
            refuse_long_durations(value, place)
        elif field.endswith("_ms") and isinstance(value, str) and duration_ms(value, field=wire_name) > MAX_DURATION_MS:
            raise invalid_field(place, f"{value!r} is too long", f"The longest is {format_duration(MAX_DURATION_MS)}")
