"""Settings in words for people; a password in a URL is never among them."""

from __future__ import annotations

import re
from typing import Any

from mainspring.config.keys import KEYS, value_of
from mainspring.config.settings import ServeSettings
from mainspring.model.instant import format_duration

_PASSWORD = re.compile(r"(://[^/@:]*):[^@]*@")
_IN_QUERY = re.compile(r"([?&](?:password|sslpassword|sentinel_password)=)[^&]*")
_DURATIONS = ("timeout", "interval", "ttl", "history", "delay", "max_lag")


def shown_url(url: str) -> str:
    """A URL without its password."""
    return _IN_QUERY.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def shown(key: str, value: Any) -> str:
    """A value as it may be written in a file."""
    if value is None:
        return "null"
    if key in ("store", "broker"):
        return shown_url(str(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, int) and key.endswith(_DURATIONS):
        return format_duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown_all(settings: ServeSettings) -> dict[str, str]:
    """Every key."""
    return {key: shown(key, value_of(settings, key)) for key in KEYS}
