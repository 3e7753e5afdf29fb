"""Format settings as text for people, without the passwords in URLs."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, unquote_plus

from mainspring.config.schema import KEYS, get_value
from mainspring.config.settings import ServeSettings
from mainspring.model.instant import format_duration

#: Parameters in the query of a URL whose values are passwords.
_PASSWORD_PARAMETERS = ("password", "sslpassword", "sentinel_password")
#: A key that ends in one of these has a duration in milliseconds as its value, if the value is a whole number.
_DURATION_SUFFIXES = ("timeout", "interval", "ttl", "history", "delay", "max_lag")


def show_store(url: str) -> str:
    """Return the URL of a store for the log: without passwords, and with the absolute path of a SQLite file.

    Why absolute: programs that start in different directories each have a file of their own.
    """
    scheme, separator, rest = url.partition("://")
    place, question_mark, query = rest.partition("?")
    if scheme.lower() == "sqlite" and place.startswith("/") and place[1:]:
        path = os.path.abspath(unquote(place[1:]))
        return redact_url(f"{scheme}{separator}/{path}{question_mark}{query}")
    return redact_url(url)


def redact_url(url: str) -> str:
    """Return a URL with *** in place of its passwords: the password before the host, and passwords in the query.

    Why not `urlsplit`: the store on Redis takes everything up to the last @ before the query as user and password,
    raw @, / and # included.
    """
    head, question_mark, query = url.partition("?")
    scheme, _, rest = head.partition("://")
    login, at, address = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    if at and colon and scheme.lower() != "sqlite":  # the path of a SQLite file may contain : and @
        head = f"{scheme}://{user}:***@{address}"
    return head + question_mark + "&".join(map(_redact_parameter, query.split("&")))


def _redact_parameter(parameter: str) -> str:
    """Return one NAME=VALUE of a URL's query, with *** in place of the value if that is a password."""
    name, equals, _ = parameter.partition("=")
    return f"{name}=***" if equals and unquote_plus(name) in _PASSWORD_PARAMETERS else parameter


def format_value(key: str, value: Any) -> str:
    """Return `value`, the checked value of the configuration key `key`, as text for people, much as YAML writes it.

    Passwords in URLs become ***, None becomes "null", and durations get a unit. Texts are not quoted.
    """
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
    """Return configuration key → its value as text, for every key, with *** in place of passwords in URLs."""
    return {key: format_value(key, get_value(settings, key)) for key in KEYS}
