"""Readers: functions that check one configuration value and return it as the settings hold it.

A value from a file has a type; a value from a variable is text. Each reader accepts both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from mainspring.model.errors import InvalidInput
from mainspring.model.ids import check_name
from mainspring.model.instant import Ms, duration_ms, format_duration
from mainspring.model.policies import check_choice

#: Takes a raw value and the name of its key or variable; returns the value as the settings hold it. Raises
#: InvalidInput, which begins with that name, if the value is not acceptable.
Reader = Callable[[Any, str], Any]

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|kB|MB)?", re.IGNORECASE)
_SIZES = {"": 1, "b": 1, "kib": 1024, "mib": 1024 * 1024, "kb": 1_000, "mb": 1_000_000}


def text(value: Any, field: str) -> str:
    """Read a text of one line; white space around it is removed. An empty text is refused."""
    if not isinstance(value, str) or not value.strip() or any(ord(c) < 32 or ord(c) == 127 for c in value):
        hint = " (YAML reads yes, no, on and off as such)" if isinstance(value, bool) else ""
        raise InvalidInput(field, f"{_shown(value)} is not a text{hint}", "Put one line of text between quotes")
    return value.strip()


def name(value: Any, field: str) -> str:
    """Read a name of 1 to 255 printable characters, such as a namespace."""
    return check_name(text(value, field), field=field)


def optional(read: Reader) -> Reader:
    """Return a reader that reads None and an empty text as None, and anything else with `read`."""
    return lambda value, field: None if value is None or value == "" else read(value, field)


def boolean(value: Any, field: str) -> bool:
    """Read a boolean, also written as yes, no, on, off, 1 or 0."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _BOOLEANS:
        return _BOOLEANS[value.strip().lower()]
    raise InvalidInput(field, f"{_shown(value)} is neither true nor false", "Write true or false")


def whole(low: int, high: int, unit: str = "") -> Reader:
    """Return a reader of whole numbers from `low` to `high`; errors name the unit, if one is given."""

    def read(value: Any, field: str) -> int:
        fix = f"Use a whole number from {low} to {high}" + (f", in {unit}" if unit else "")
        if isinstance(value, str):
            digits = value.strip().replace("_", "")
            if not re.fullmatch(r"[+-]?\d{1,20}", digits):
                raise InvalidInput(field, f"{_shown(value)} is not a whole number", fix)
            value = int(digits)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInput(field, f"{_shown(value)} is not a whole number", fix)
        if not low <= value <= high:
            raise InvalidInput(field, f"{value} is out of range", fix)
        return value

    return read


def number(low: float, high: float) -> Reader:
    """Return a reader of numbers from `low` to `high`."""

    def read(value: Any, field: str) -> float:
        fix = f"Use a number from {low:g} to {high:g}"
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError
            found = float(value)
        except ValueError:
            raise InvalidInput(field, f"{_shown(value)} is not a number", fix) from None
        if not math.isfinite(found) or not low <= found <= high:
            raise InvalidInput(field, f"{value} is out of range", fix)
        return found

    return read


def duration(low: Ms, high: Ms) -> Reader:
    """Return a reader of durations from `low` to `high`, written as "30s" or as a number of seconds."""

    def read(value: Any, field: str) -> Ms:
        if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value.strip()):
            value = float(value)
        found = duration_ms(value, field=field)
        if not low <= found <= high:
            raise InvalidInput(
                field,
                f"{format_duration(found)} is out of range",
                f"Use {format_duration(low)} to {format_duration(high)}",
            )
        return found

    return read


def duration_count(unit: Ms, low: Ms, high: Ms) -> Reader:
    """Return a reader of durations from `low` to `high` that are whole numbers of `unit`, which is 1 or 1,000 ms.

    Other schedulers write durations so, without a unit. The reader returns milliseconds.
    """
    read = whole(-(-low // unit), high // unit, "milliseconds" if unit == 1 else "seconds")
    return lambda value, field: read(value, field) * unit


def size(low: int, high: int) -> Reader:
    """Return a reader of sizes from `low` to `high` bytes, written as a number or as "64KiB"."""

    def read(value: Any, field: str) -> int:
        fix = f'Use {low} to {high} bytes, or for example "64KiB"'
        if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
            value = int(found[1]) * _SIZES[(found[2] or "").lower()]
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInput(field, f"{_shown(value)} is not a size", fix)
        if not low <= value <= high:
            raise InvalidInput(field, f"{value} bytes is out of range", fix)
        return value

    return read


def word(*allowed: str) -> Reader:
    """Return a reader of one of these words; it accepts upper case and returns lower case."""

    def read(value: Any, field: str) -> str:
        return check_choice(text(value, field).lower(), allowed, field=field)

    return read


def several(read: Reader) -> Reader:
    """Return a reader of lists of at most 1,000 items, also written as one text with commas; `read` reads each item.

    The list is returned as a tuple.
    """

    def read_all(value: Any, field: str) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple) or len(value) > 1_000:
            raise InvalidInput(field, f"{_shown(value)} is not a list", "Write [one, two]")
        return tuple(read(item, f"{field}[{index}]") for index, item in enumerate(value))

    return read_all


def http_url(value: Any, field: str) -> str:
    """Read an absolute http or https URL without query, fragment and user; slashes at its end are removed."""
    given = text(value, field)
    fix = "Write for example https://scheduler.example.com"
    try:
        parts = urlsplit(given)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidInput(field, f"{given!r} is not a URL", fix) from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidInput(field, f"{given!r} is not a plain http or https URL", fix)
    return given.rstrip("/")


def host(value: Any, field: str) -> str:
    """Read the address or host name to listen on; brackets around an IPv6 address are removed."""
    given = text(value, field).strip("[]")
    if not re.fullmatch(r"[A-Za-z0-9.:_%-]{1,255}", given) or given.startswith("http:"):
        raise InvalidInput(field, f"{given!r} is not an address", "Write 127.0.0.1, 0.0.0.0, :: or the name of a host")
    return given


def store_url(value: Any, field: str) -> str:
    """Read the URL of a store; the store is not opened. Raises: also MissingExtra, if its package is not installed."""
    from mainspring.ports.clock import SystemClock
    from mainspring.runtime.runtime import open_store

    given = text(value, field)
    try:
        open_store(given, SystemClock())
    except InvalidInput as error:
        raise InvalidInput(field, error.problem, error.fix) from None
    return given


def broker_url(value: Any, field: str) -> str:
    """Read the URL of a broker; no connection is made. Raises: also MissingExtra, if its package is not installed."""
    from mainspring.ports.clock import SystemClock
    from mainspring.runtime.runtime import open_broker

    given = text(value, field)
    try:
        open_broker(given, SystemClock())
    except InvalidInput as error:
        raise InvalidInput(field, error.problem, error.fix) from None
    return given


def program(value: Any, field: str) -> str:
    """Read the name of a Python program: MODULE:APP, or MODULE if it holds one app only."""
    given = text(value, field)
    if not re.fullmatch(r"[A-Za-z_][\w.]*(:[A-Za-z_]\w*)?", given):
        raise InvalidInput(field, f"{given!r} names no program", "Write MODULE:APP, for example app:ms")
    return given


def _shown(value: Any) -> str:
    """Return a value as Python text for an error, cut to 60 characters."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
