"""Readers: functions that check the raw value of one configuration key, and return it as the settings hold it.

A raw value from a file may be a number, a boolean or a list; one from a variable is always text. A reader accepts both.
Functions called `read_…` are readers; functions called `…_reader` return one. `field` is the name of the key or
variable. For a wrong value, a reader raises InvalidInput with this name.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from mainspring.agents.guard import parse_allow_list
from mainspring.model.errors import InvalidInput
from mainspring.model.ids import check_name
from mainspring.model.instant import Ms, duration_ms, format_duration
from mainspring.model.policies import check_choice

#: Takes a raw value and the name of its key or variable, and returns the value as the settings hold it. Raises
#: InvalidInput, with that name as its field, for a wrong value.
Reader = Callable[[Any, str], Any]

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|kB|MB)?", re.IGNORECASE)
_SIZES = {"": 1, "b": 1, "kib": 1024, "mib": 1024 * 1024, "kb": 1_000, "mb": 1_000_000}


def read_text(value: Any, field: str) -> str:
    """Check that a value is one line of text, not empty, and return it with the spaces around it removed.

    Raises: InvalidInput, also for a control character anywhere, such as a tab or a line end.
    """
    if not isinstance(value, str) or not value.strip() or any(ord(c) < 32 or ord(c) == 127 for c in value):
        hint = " (YAML reads yes, no, on and off as such)" if isinstance(value, bool) else ""
        raise InvalidInput(field, f"{_shown(value)} is not a text{hint}", "Put one line of text between quotes")
    return value.strip()


def read_agent_host(value: Any, field: str) -> str:
    """Read a host name, an address or a network of HTTP agents, such as 10.1.0.0/16."""
    host = read_text(value, field)
    parse_allow_list((host,), field)
    return host


def read_name(value: Any, field: str) -> str:
    """Read a name of 1 to 255 printable characters, such as a namespace."""
    return check_name(read_text(value, field), field=field)


def optional_reader(read: Reader) -> Reader:
    """Return a reader that reads None and an empty text as None, and any other value with `read`."""
    return lambda value, field: None if value is None or value == "" else read(value, field)


def read_boolean(value: Any, field: str) -> bool:
    """Read a boolean, or one of the texts true, false, yes, no, on, off, 1 and 0, in upper or lower case."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _BOOLEANS:
        return _BOOLEANS[value.strip().lower()]
    raise InvalidInput(field, f"{_shown(value)} is neither true nor false", "Write true or false")


def whole_reader(low: int, high: int, unit: str = "") -> Reader:
    """Return a reader of whole numbers from `low` to `high`. `unit` appears in its error texts; "": no unit."""

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


def number_reader(low: float, high: float) -> Reader:
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


def duration_reader(low: Ms, high: Ms) -> Reader:
    """Return a reader of durations from `low` to `high` ms, given as a text such as "30s" or as a number of seconds.

    The reader returns milliseconds.
    """

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


def duration_count_reader(unit: Ms, low: Ms, high: Ms) -> Reader:
    """Return a reader of durations from `low` to `high` ms that are given as a whole number, without a unit.

    `unit`: what the number counts, 1 for milliseconds or 1,000 for seconds. Other schedulers write durations in this
    way. The reader returns milliseconds.
    """
    read = whole_reader(-(-low // unit), high // unit, "milliseconds" if unit == 1 else "seconds")
    return lambda value, field: read(value, field) * unit


def size_reader(low: int, high: int) -> Reader:
    """Return a reader of sizes from `low` to `high` bytes, given as a number or as "64KiB"."""

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


def word_reader(*allowed: str) -> Reader:
    """Return a reader of a word that is one of `allowed`; it accepts upper case and returns lower case."""

    def read(value: Any, field: str) -> str:
        return check_choice(read_text(value, field).lower(), allowed, field=field)

    return read


def list_reader(read: Reader) -> Reader:
    """Return a reader of lists of at most 1,000 items, given as a list or as one text with commas.

    It reads each item with `read`, and returns a tuple.
    """

    def read_all(value: Any, field: str) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = [part for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple) or len(value) > 1_000:
            raise InvalidInput(field, f"{_shown(value)} is not a list", "Write [one, two]")
        return tuple(read(item, f"{field}[{index}]") for index, item in enumerate(value))

    return read_all


def read_ports(value: Any, field: str) -> tuple[int, ...]:
    """Read a list of ports, or the word "any", which gives an empty tuple."""
    ports: tuple[int, ...] = () if value == "any" else list_reader(whole_reader(1, 65_535))(value, field)
    if value != "any" and not ports:
        raise InvalidInput(field, "is empty", "List the ports, or write any")
    return ports


def read_http_url(value: Any, field: str) -> str:
    """Check an absolute http or https URL and return it without slashes at its end.

    Raises: InvalidInput for any other text, and for a URL with a query, fragment or user.
    """
    given = read_text(value, field)
    fix = "Write for example https://scheduler.example.com"
    try:
        parts = urlsplit(given)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidInput(field, f"{given!r} is not a URL", fix) from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidInput(field, f"{given!r} is not a plain http or https URL", fix)
    return given.rstrip("/")


def read_host(value: Any, field: str) -> str:
    """Read the address or host name to listen on, and remove brackets around an IPv6 address."""
    given = read_text(value, field).strip("[]")
    if not re.fullmatch(r"[A-Za-z0-9.:_%-]{1,255}", given) or given.startswith("http:"):
        raise InvalidInput(field, f"{given!r} is not an address", "Write 127.0.0.1, 0.0.0.0, :: or the name of a host")
    return given


def read_network(value: Any, field: str) -> str:
    """Read an IP address or network, such as 10.0.0.0/8, and return it as a network."""
    given = read_text(value, field)
    try:
        return str(ipaddress.ip_network(given.strip("[]"), strict=False))
    except ValueError:
        fix = "Write for example 127.0.0.1 or 10.0.0.0/8"
        raise InvalidInput(field, f"{given!r} is not an address or network", fix) from None


def read_store_url(value: Any, field: str) -> str:
    """Check the URL of a store, which is not opened, and return it.

    Raises: InvalidInput for a wrong URL; MissingExtra if a package that the store needs is not installed.
    """
    from mainspring.ports.clock import SystemClock
    from mainspring.runtime.lazy_backends import open_store

    given = read_text(value, field)
    try:
        open_store(given, SystemClock())
    except InvalidInput as error:
        raise InvalidInput(field, error.problem, error.fix) from None
    return given


def read_broker_url(value: Any, field: str) -> str:
    """Check the URL of a broker, which is not opened, and return it.

    Raises: InvalidInput for a wrong URL; MissingExtra if a package that the broker needs is not installed.
    """
    from mainspring.ports.clock import SystemClock
    from mainspring.runtime.lazy_backends import open_broker

    given = read_text(value, field)
    try:
        open_broker(given, SystemClock())
    except InvalidInput as error:
        raise InvalidInput(field, error.problem, error.fix) from None
    return given


def read_program(value: Any, field: str) -> str:
    """Read the name of a Python program: MODULE:APP, or MODULE if it has only one app. Nothing is imported."""
    given = read_text(value, field)
    if not re.fullmatch(r"[A-Za-z_][\w.]*(:[A-Za-z_]\w*)?", given):
        raise InvalidInput(field, f"{given!r} names no program", "Write MODULE:APP, for example app:ms")
    return given


def _shown(value: Any) -> str:
    """Return a value as Python writes it, for an error text; a text of more than 60 characters is cut."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"
