"""Plain data: turns the views that programs get into data that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, NoReturn

from mainspring.model.instant import instant_ms, isoformat


def to_plain(view: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as data for JSON: datetimes as RFC 3339 text in UTC, enums as their values."""
    return {field.name: _plain(getattr(view, field.name)) for field in fields(view)}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return isoformat(instant_ms(value))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return to_plain(value) if is_dataclass(value) and not isinstance(value, type) else value


def refuse_attribute(kind: str, name: str, moved: Mapping[str, str]) -> NoReturn:
    """Raise AttributeError for an attribute `name` that the class `kind` does not have.

    `moved`: former name → where its value is now.
    """
    hint = f": {moved[name]}" if name in moved else ""
    raise AttributeError(f"{kind} has no {name!r}{hint}", name=name)
