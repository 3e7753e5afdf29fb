"""Instants, durations and zones.

Inside Mainspring, times are whole milliseconds. Datetimes and texts appear only where users pass or read values.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from mainspring.model.errors import InvalidDuration, InvalidInput, NaiveDatetime, UnknownZone, suggest_nearest

#: Whole milliseconds: an instant, counted from 1970-01-01T00:00Z, or a duration.
Ms = int
#: Milliseconds of a day in UTC.
DAY_MS: Ms = 86_400_000
DAY_SECONDS = 86_400

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
#: First and last instant that users may give: those that have a datetime in UTC.
MIN_INSTANT_MS: Ms = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
MAX_INSTANT_MS: Ms = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION_FIX = 'Write for example "500ms", "30s", "10m", "1h30m", "2d", seconds as a number, or a timedelta'
_NEGATIVE_FIX = "A duration must not be negative"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
#: A number with the word of its unit, and words that people write for the units.
_WORDS = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_UNIT_OF_WORD = {
    **dict.fromkeys(("millis", "msec", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("week", "weeks"), "w"),
}
_MAX_MEANT_CHARS = 64

#: Text such as "10m" or "1h30m", a number of seconds, or a timedelta.
Duration = str | int | float | timedelta


def duration_ms(value: Duration, *, field: str = "duration", minimum: Ms = 0) -> Ms:
    """Return the milliseconds of a duration that is given as text, as a number of seconds, or as a timedelta.

    `field` names the value in errors. Raises `InvalidDuration` if the value is not a duration, is negative or not
    finite, or is shorter than `minimum`.
    """
    if isinstance(value, str):
        result = _text_duration_ms(value, field)
    elif isinstance(value, timedelta):
        result = value // _MILLISECOND
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise InvalidDuration(field, f"{value!r} is not a finite number of seconds", _DURATION_FIX)
        result = round(value * 1000)
    else:
        shown = repr(value) if isinstance(value, bool) else type(value).__name__
        raise InvalidDuration(field, f"{shown} is not a duration", _DURATION_FIX)
    if result < 0:
        raise InvalidDuration(field, f"{value!r} is negative", _NEGATIVE_FIX)
    if result < minimum:
        shown = format_duration(result) if isinstance(value, timedelta) else repr(value)
        raise InvalidDuration(field, f"{shown} is too short", f"The shortest is {format_duration(minimum)}")
    return result


def _text_duration_ms(text: str, field: str) -> Ms:
    """Return the milliseconds of a text such as "1h30m". Else raise `InvalidDuration`, which names `field`."""
    found = _parse_duration(text)
    if found is None:
        if text.lstrip().startswith("-"):
            raise InvalidDuration(field, f"{text!r} is negative", _NEGATIVE_FIX)
        if _NUMBER.fullmatch(text.strip()):
            raise InvalidDuration(field, f"{text!r} has no unit", f'Add one: "{text.strip()}s" for seconds')
        meant = nearest_duration(text)
        fix = f"Did you mean {meant!r}?" if meant else _DURATION_FIX
        raise InvalidDuration(field, f"{text!r} is not a duration", fix)
    return found


def nearest_duration(text: str) -> str:
    """Return the duration that a text such as "10 minutes" or "10m" means, as "10m"; "" if it means none."""
    if len(text) > _MAX_MEANT_CHARS:
        return ""
    words = _WORDS.sub(lambda found: found[1] + _UNIT_OF_WORD.get(found[2], found[2]), text.strip().lower())
    short = words.replace(" ", "")
    return short if _parse_duration(short) else ""


@lru_cache(1_000)
def _parse_duration(value: str) -> Ms | None:
    """Return the milliseconds of a text such as "1h30m", None if the text is not a duration."""
    text = value.strip().lower()
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.replace(" ", ""):
        return None
    return round(sum(float(number) * _UNITS[unit] for number, unit in parts))


def format_duration(ms: Ms) -> str:
    """Return a duration as exact text in the largest units: 90000 → '1m30s'."""
    if ms == 0:
        return "0s"
    text = ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, ms = divmod(ms, size)
        text += f"{count}{unit}" if count else ""
    return text


def instant_ms(value: datetime | str, *, field: str = "time") -> Ms:
    """Return the instant, in milliseconds, of an aware datetime or of ISO 8601 text with an offset.

    `field` names the value in errors. Raises `NaiveDatetime` if the zone is missing, and `InvalidInput` if the value is
    neither a datetime nor such a text, or lies outside `MIN_INSTANT_MS` to `MAX_INSTANT_MS`.
    """
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
    found = (value - _EPOCH) // _MILLISECOND
    if not MIN_INSTANT_MS <= found <= MAX_INSTANT_MS:
        raise InvalidInput(field, f"{value.isoformat()} is out of range", "Give a time in the years 1 to 9999, in UTC")
    return found


def to_datetime(ms: Ms, zone: ZoneInfo | None = None) -> datetime:
    """Return the aware datetime of an instant, in UTC unless a zone is given."""
    utc = _EPOCH + timedelta(milliseconds=ms)
    return utc if zone is None else utc.astimezone(zone)


def isoformat(ms: Ms) -> str:
    """Return an instant as text such as 2026-03-01T09:00:00Z, with milliseconds only if they are not zero."""
    text = to_datetime(ms).isoformat(timespec="milliseconds" if ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")


@lru_cache(maxsize=1024)
def load_zone(name: str, *, field: str = "tz") -> ZoneInfo:
    """Return the time zone that the tz database has under `name`.

    Raises `UnknownZone`, which names `field` and suggests the nearest existing name, if there is no such zone.
    """
    fix = 'Use a name of the tz database such as "Europe/Berlin" or "UTC"'
    if not isinstance(name, str) or not name:
        raise UnknownZone(field, f"{name!r} is not a time zone", fix)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # Not the abbreviations: of CEST, the nearest one is EST, 7 hours away.
        known = [zone for zone in available_timezones() if zone == "UTC" or not zone.isupper()]
        raise UnknownZone(field, f"{name!r} is not a time zone", suggest_nearest(name, known) or fix) from None
