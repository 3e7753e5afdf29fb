"""Format settings as text for people, without the passwords in URLs."""

from __future__ import annotations

import re
from typing import Any

from mainspring.config.schema import KEYS, get_value
from mainspring.config.settings import ServeSettings
from mainspring.model.instant import format_duration

#: A password before the host of a URL, and one among the options of its query.
_PASSWORD = re.compile(r"(://[^/@:]*):[^@]*@")
_PASSWORD_PARAMETER = re.compile(r"([?&](?:password|sslpassword|sentinel_password)=)[^&]*")
#: Ends of the keys whose whole numbers are durations in milliseconds.
_DURATION_SUFFIXES = ("timeout", "interval", "ttl", "history", "delay", "max_lag")


def redact_url(url: str) -> str:
    """Return a URL with *** in place of its passwords, also of those in its query."""
    return _PASSWORD_PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def format_value(key: str, value: Any) -> str:
    """Return the value of a key in the form of a configuration file; passwords in URLs are replaced by ***."""
    if value is None:
        return "null"
    if key in ("store", "broker"):
        return redact_url(str(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, int) and key.endswith(_DURATION_SUFFIXES):
        return format_duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_all(settings: ServeSettings) -> dict[str, str]:
    """Return key → its value as `format_value` writes it, for all keys."""
    return {key: format_value(key, get_value(settings, key)) for key in KEYS}
