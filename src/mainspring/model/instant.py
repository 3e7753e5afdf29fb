"""Instants, durations and zones: whole milliseconds inside, datetimes and text at the edges."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from mainspring.model.errors import InvalidDuration, InvalidInput, NaiveDatetime, UnknownZone, nearest

Ms = int

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")

#: Text such as "10m" or "1h30m", a number of seconds, or a timedelta.
Duration = str | int | float | timedelta


def duration_ms(value: Duration, *, field: str = "duration", minimum: Ms = 0) -> Ms:
    """Read a duration; refuse what is negative, not finite or not readable."""
    fix = 'Write for example "500ms", "30s", "10m", "1h30m", "2d", seconds as a number, or a timedelta'
    if isinstance(value, str):
        found = _read(value)
        if found is None:
            if value.lstrip().startswith("-"):
                raise InvalidDuration(field, f"{value!r} is negative", "A duration must not be negative")
            raise InvalidDuration(field, f"{value!r} is not a duration", fix)
        result = found
    elif isinstance(value, bool):
        raise InvalidDuration(field, f"{value!r} is not a duration", fix)
    elif isinstance(value, timedelta):
        result = value // _MILLISECOND
    elif isinstance(value, int | float):
        if value != value or value in (float("inf"), float("-inf")):
            raise InvalidDuration(field, f"{value!r} is not a finite number of seconds", fix)
        result = round(value * 1000)
    else:
        raise InvalidDuration(field, f"{type(value).__name__} is not a duration", fix)
    if result < 0:
        raise InvalidDuration(field, f"{value!r} is negative", "A duration must not be negative")
    if result < minimum:
        raise InvalidDuration(field, f"{value!r} is too short", f"The shortest is {format_duration(minimum)}")
    return result


@lru_cache(1_000)
def _read(value: str) -> Ms | None:
    text = value.strip().lower()
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.replace(" ", ""):
        return None
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts))


def format_duration(ms: Ms) -> str:
    """The shortest exact text of a duration: 90000 → '1m30s'."""
    if ms == 0:
        return "0s"
    text = ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, ms = divmod(ms, size)
        text += f"{count}{unit}" if count else ""
    return text


def instant_ms(value: datetime | str, *, field: str = "time") -> Ms:
    """An aware datetime, or ISO 8601 text with an offset, as an instant."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInput(
                field, f"{value!r} is not a time", "Write ISO 8601 with an offset, for example 2026-03-01T09:00:00Z"
            ) from None
    if not isinstance(value, datetime):
        raise InvalidInput(field, f"{type(value).__name__} is not a datetime", "Give an aware datetime")
    if value.tzinfo is None or value.utcoffset() is None:
        raise NaiveDatetime(
            field,
            f"{value.isoformat()} has no time zone",
            'Add one: tzinfo=ZoneInfo("Europe/Berlin"), datetime.UTC or a trailing Z',
        )
    return (value - _EPOCH) // _MILLISECOND


def to_datetime(ms: Ms, zone: ZoneInfo | None = None) -> datetime:
    """The aware datetime of an instant, in UTC unless a zone is given."""
    utc = _EPOCH + timedelta(milliseconds=ms)
    return utc if zone is None else utc.astimezone(zone)


def isoformat(ms: Ms) -> str:
    """2026-03-01T09:00:00Z, with milliseconds only where there are some."""
    text = to_datetime(ms).isoformat(timespec="milliseconds" if ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")


@lru_cache(maxsize=1024)
def zone(name: str, *, field: str = "tz") -> ZoneInfo:
    """The zone of this name; an unknown one is answered with the nearest that exists."""
    fix = 'Use a name of the tz database such as "Europe/Berlin" or "UTC"'
    if not isinstance(name, str) or not name:
        raise UnknownZone(field, f"{name!r} is not a time zone", fix)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise UnknownZone(field, f"{name!r} is not a time zone", nearest(name, available_timezones()) or fix) from None
