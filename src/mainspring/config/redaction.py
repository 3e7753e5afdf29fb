"""Settings as text for people, without the passwords in URLs."""

from __future__ import annotations

import re
from typing import Any

from mainspring.config.schema import KEYS, get_value
from mainspring.config.settings import ServeSettings
from mainspring.model.instant import format_duration

_PASSWORD = re.compile(r"(://[^/@:]*):[^@]*@")
_PASSWORD_PARAMETER = re.compile(r"([?&](?:password|sslpassword|sentinel_password)=)[^&]*")
_DURATION_SUFFIXES = ("timeout", "interval", "ttl", "history", "delay", "max_lag")


def redact_url(url: str) -> str:
    """Replace the password in a URL, also in its query, by ***."""
    return _PASSWORD_PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def format_value(key: str, value: Any) -> str:
    """Return the value of a key as it can be written in a configuration file."""
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
    """Return the values of all keys as text."""
    return {key: format_value(key, get_value(settings, key)) for key in KEYS}
