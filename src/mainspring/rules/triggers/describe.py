"""Descriptions of cron expressions as English sentences: by the library cron-descriptor, or by this module where the
library has no words for an expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from mainspring.rules.triggers.cron_parse import MONTH_WORDS, WEEKDAY_WORDS, CronFields, Field, Special, is_uneven

#: Name of a field → the period at whose start its steps begin again. Weekdays are listed one by one.
_RESTARTS = {"second": "minute", "minute": "hour", "hour": "day", "day-of-month": "month", "month": "year"}
_NTH = ("first", "second", "third", "fourth", "fifth")


def describe_cron(fields: CronFields, tz: str) -> str:
    """Return an expression and its time zone in words: 'At 09:00, Monday through Friday (Europe/Berlin)'."""
    return f"{_sentence(fields)} ({tz})"


def _restarts(fields: Sequence[Field]) -> str:
    """Return the words for steps that do not divide their range, so that the last gap is shorter; "" without one."""
    found = [
        _RESTARTS[field.kind.name]
        for field in fields
        if field.kind.name in _RESTARTS and len(field.values) > 1 and any(map(partial(is_uneven, field), field.items))
    ]
    return f", starting again each {_join_words(found)}" if found else ""


def _sentence(fields: CronFields) -> str:
    days, weekdays = _format_field(fields.days), _format_field(fields.weekdays)
    mixed = any(field.specials and len(field.items) > 1 for field in (fields.days, fields.weekdays))
    both = days != "*" and weekdays != "*"
    if not mixed and (not both or fields.days_or_weekdays):
        text = _describe_by_library(fields, days, _step_or_value(fields.fields[4]), weekdays)
        if text:
            return f"{text}{_restarts(fields.fields)}"
    text = _describe_by_library(fields, "*", "*", "*") or _times(fields)
    return ", ".join([f"{text}{_restarts(fields.fields[:3])}", *_own_days(fields)])


def _format_field(field: Field) -> str:
    """Return a field in the form that cron-descriptor reads.

    It is '*' if the field allows every value. H is replaced by its value, and Sunday is 0, not 7.
    """
    if not field.specials and len(field.values) == 1 and any(map(partial(is_uneven, field), field.items)):
        return str(field.values[0])  # a step longer than its range
    if not field.specials and len(field.values) == (7 if field.kind.name == "day-of-week" else field.kind.high):
        return "*"
    if field.kind.name == "day-of-week" and not field.specials:
        if "," in field.text or "/" in field.text or field.text == "7":
            return ",".join(map(str, field.values))
        return field.plain.replace("-7", "-0")
    return field.plain


def _describe_by_library(fields: CronFields, days: str, months: str, weekdays: str) -> str:
    """Return cron-descriptor's words for the times of an expression and the given day fields; "" if it has none."""
    from cron_descriptor import Options, get_description  # type: ignore[import-untyped]

    options = Options(locale_code="en_US", use_24hour_time_format=True)  # not the language of the machine
    times = [_step_or_value(field) for field in fields.fields[0 if fields.with_seconds else 1 : 3]]
    try:
        return str(get_description(" ".join([*times, days, months, weekdays]), options))
    except Exception:  # it raises many kinds of errors; all mean that it has no words for this
        return ""


def _step_or_value(field: Field) -> str:
    """Return a field of the time as it was written, but a step longer than its range as the one value it matches."""
    only = len(field.values) == 1 and any(map(partial(is_uneven, field), field.items))
    return str(field.values[0]) if only else field.plain


def _times(fields: CronFields) -> str:
    names = ("second", "minute", "hour")
    shown = zip(names, fields.fields[:3], strict=True)
    return "When " + ", ".join(f"{name} is {field.plain}" for name, field in shown if field.plain != "*")


def _own_days(fields: CronFields) -> list[str]:
    parts = _day_parts(fields)
    if len(fields.months) < 12:
        parts.append(f"only in {_join_words(MONTH_WORDS[month - 1] for month in fields.months)}")
    return parts


def _day_parts(fields: CronFields) -> list[str]:
    by_day = [f"day {_join_words(map(str, fields.days.values))}"] if fields.days.values else []
    by_day += [_special_day(special) for special in fields.days.specials]
    by_weekday = [WEEKDAY_WORDS[weekday] for weekday in fields.weekdays.values]
    by_weekday += [_special_weekday(special) for special in fields.weekdays.specials]
    all_days, all_weekdays = len(fields.days.values) == 31, len(fields.weekdays.values) == 7
    if all_days and all_weekdays:
        return []
    if all_weekdays:
        return [f"on {_join_words(by_day)} of the month"]
    if all_days:
        return [f"on {_join_words(by_weekday)}"]
    if fields.days_or_weekdays:
        return [f"on {_join_words(by_day)} of the month, or on {_join_words(by_weekday)}"]
    return [f"on {_join_words(by_day)} of the month if it is also {_join_words(by_weekday, 'or')}"]


def _special_day(special: Special) -> str:
    if special.what == "last-weekday":
        return "the last weekday"
    if special.what == "nearest-weekday":
        return f"the weekday nearest day {special.number}"
    return f"{special.number} days before the last day" if special.number else "the last day"


def _special_weekday(special: Special) -> str:
    which = "last" if special.what == "last" else _NTH[special.number - 1]
    return f"the {which} {WEEKDAY_WORDS[special.weekday]} of the month"


def _join_words(words: Iterable[str], joint: str = "and") -> str:
    *start, last = words
    return f"{', '.join(start)} {joint} {last}" if start else last
