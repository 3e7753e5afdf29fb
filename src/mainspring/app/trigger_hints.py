"""Trigger hints: what to write for `@ms.cron(hour=2)` and `@ms.every(seconds=10)`, as other schedulers have it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from mainspring.model.errors import InvalidInput
from mainspring.model.instant import duration_ms, format_duration
from mainspring.rules.triggers import Cron

P = ParamSpec("P")
R = TypeVar("R")

#: Decorator of a schedule → its value, as an example.
EXAMPLES = {"cron": '"0 9 * * *"', "every": '"10m"', "at": "datetime(2030, 1, 1, tzinfo=UTC)"}
#: Example for parts of a time from which no expression can be made.
_OTHER_TIME = '"0 9 * * Mon-Fri"'
_CRON_PARTS = ("minute", "hour", "day", "month")
_UNITS = {"weeks": "w", "days": "d", "hours": "h", "minutes": "m", "seconds": "s"}
#: Decorator → the options by which other schedulers take its value in parts, or by another name.
_PARTS = {"cron": ("second", *_CRON_PARTS, "day_of_week"), "every": tuple(_UNITS), "at": ("run_date", "run_at")}


def require_value(kind: str, parameter: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of a method: a call without its value raises InvalidInput, with what to write.

    `kind` is the name of the method, "cron", "every" or "at"; `parameter` is its parameter for the value.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if len(args) < 2 and parameter not in kwargs:
                raise _without_value(kind, kwargs)
            return function(*args, **kwargs)

        return checked

    return decorate


def _without_value(kind: str, options: Mapping[str, Any]) -> InvalidInput:
    """Return the error for a call that has only `options`."""
    part = next((name for name in options if name in _PARTS[kind]), None)
    if part is None:
        return InvalidInput(kind, "is used without a value", f"Write @ms.{kind}({EXAMPLES[kind]}) above the def")
    value = EXAMPLES["at"] if kind == "at" else _cron_value(options) if kind == "cron" else _every_value(options)
    return InvalidInput(part, f"is not an option of @ms.{kind}(…)", f"Write @ms.{kind}({value})")


def _cron_value(parts: Mapping[str, Any]) -> str:
    """Return the expression of a time in parts, in quotes: hour=2, minute=30 → "30 2 * * *".

    Of parts that are not given, those smaller than a given one are at their start, and larger ones are any. The number
    of a weekday has no translation: 0 is Monday for some schedulers and Sunday for others.
    """
    weekday = parts.get("day_of_week", "*")
    if any(char.isdigit() for char in str(weekday)):
        return _OTHER_TIME
    fields = []
    for index, name in enumerate(_CRON_PARTS):
        larger = set(_CRON_PARTS[index + 1 :]) | ({"day_of_week"} if name in ("minute", "hour") else set())
        unnamed = "*" if larger.isdisjoint(parts) else "0"
        if name == "day" and unnamed == "0":
            unnamed = "*" if "day_of_week" in parts else "1"
        fields.append(str(parts.get(name, unnamed)))
    if "second" in parts:
        fields.insert(0, str(parts["second"]))
    expression = " ".join([*fields, str(weekday)])
    try:
        Cron(expression)
    except InvalidInput:
        return _OTHER_TIME
    return f'"{expression}"'


def _every_value(parts: Mapping[str, Any]) -> str:
    """Return the interval of numbers by unit, in quotes: hours=1, minutes=30 → "1h30m"."""
    text = "".join(f"{parts[name]}{unit}" for name, unit in _UNITS.items() if name in parts)
    try:
        return f'"{format_duration(duration_ms(text, minimum=1))}"'
    except InvalidInput:
        return EXAMPLES["every"]
