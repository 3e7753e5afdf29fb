"""Lint of cron expressions: findings about probable mistakes, each with the text to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from mainspring.model.instant import DAY_MS, DAY_SECONDS, instant_ms
from mainspring.rules.triggers.base import FIRST_MS, LAST_MS, Finding
from mainspring.rules.triggers.cron_parse import (
    DAY_KIND,
    MONTH_WORDS,
    WEEKDAY_KIND,
    WEEKDAY_WORDS,
    CronFields,
    Field,
    Item,
)
from mainspring.rules.triggers.zone_table import Change, changes

if TYPE_CHECKING:
    from mainspring.rules.triggers.cron import Cron

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Clock changes are checked in this number of years, by default from this instant on.
CHECKED_YEARS = 6
CHECKED_FROM = datetime(2025, 1, 1, tzinfo=UTC)
_UNITS = {"second": "s", "minute": "m", "hour": "h", "day-of-month": "d"}
_SHORT_MONTHS = {2: 28, 4: 30, 6: 30, 9: 30, 11: 30}


def lint_cron(cron: Cron, zone_given: bool, around: datetime | None = None) -> list[Finding]:
    """Return all findings for an expression, in the order of their codes.

    `zone_given`: True if the user named a time zone. `around`: the instant from which to check whether a fire is still
    to come, and which clock changes matter. None: do not check for a coming fire, and check clock changes from 2025.
    """
    fields = cron.fields
    if cron.never:
        findings = [Finding("L001", f"never fires: {_impossible(fields)}")]
    elif around is not None and cron.next_ms(max(instant_ms(around, field="around"), FIRST_MS)) is None:
        findings = [Finding("L001", "never fires again: there is no match before the year 9999")]
    else:
        findings = [*_both_day_fields(fields)]
    findings += _uneven_steps(fields)
    if not cron.never:
        findings += _clock_changes(cron, CHECKED_FROM if around is None else around)
        findings += _missing_days(fields)
    if fields.with_seconds:
        first = fields.fields[0].text
        text = f"6 fields: the first ({first}) is read as seconds. Write 5 fields if it was meant as minutes"
        findings.append(Finding("L008", text))
    if not zone_given and _zone_matters(fields):
        findings.append(
            Finding("L009", 'no zone is given, so UTC is used. Write tz="UTC" to mean it, or the zone people live by')
        )
    return findings


def _zone_matters(fields: CronFields) -> bool:
    """Return True if the hours are restricted, or a day or month field is not * or ?.

    Minutes and seconds are ignored.
    """
    return len(fields.hours) < 24 or any(field.text not in ("*", "?") for field in fields.fields[3:])


def _impossible(fields: CronFields) -> str:
    months = " or ".join(MONTH_WORDS[month - 1] for month in fields.months)
    if fields.weekdays.starred and fields.weekdays.text in "*?":
        text = f"{months} has no day {fields.days.text}"
    else:
        text = f"no day of {months} is both {fields.days.text} and {fields.weekdays.text}"
    return f"{text}. Write a day that exists, or L for the last day of the month"


def _both_day_fields(fields: CronFields) -> Iterator[Finding]:
    if not fields.days_or_weekdays:
        return
    text = "day-of-month and day-of-week are both set: as in unix cron they are joined with OR. "
    weekdays, days = fields.weekdays, fields.days
    single = len(weekdays.values) == 1 and not weekdays.specials and not days.specials
    week = {(day - 1) // 7 for day in days.values}
    if single and len(week) == 1 and max(days.values) <= 28:
        nth, weekday = min(week) + 1, weekdays.values[0]
        name = WEEKDAY_WORDS[weekday]
        written = " ".join([*_texts(fields, "*"), f"{weekday}#{nth}"])
        text += f'For "{("first", "second", "third", "fourth")[nth - 1]} {name} of the month" write {written}'
    else:
        text += "For one of them only, put * in the other; for the second Friday write * in day-of-month and 5#2"
    yield Finding("L002", text)


def _texts(fields: CronFields, day: str) -> list[str]:
    first = 0 if fields.with_seconds else 1
    return [*(field.text for field in fields.fields[first:3]), day, fields.fields[4].text]


def _uneven_steps(fields: CronFields) -> Iterator[Finding]:
    for field in fields.fields:
        for item in field.items:
            if item.star and item.step > 1:
                text = _uneven_step(field, item)
                if text:
                    yield Finding("L003", text)


def _uneven_step(field: Field, item: Item) -> str:
    kind, step = field.kind, item.step
    if kind is DAY_KIND:
        return (
            f"day-of-month: {item.text} starts again at day 1 of every month, so the last gap of a month differs. "
            f'For an even pace write Every("{step}d")'
        )
    size = 7 if kind is WEEKDAY_KIND else kind.high - kind.low + 1
    if size % step == 0:
        return ""
    instead = " or ".join(f"*/{n}" for n in _nearest_divisors(step, size))
    if kind.name in _UNITS:
        instead += f', or Every("{step}{_UNITS[kind.name]}") for an even pace'
    if len(item.values) == 1:
        only = f"{item.text} matches {item.values[0]} only, as the step is longer than the range"
        return f"{kind.name}: {only}. Write {instead}"
    gap = item.values[0] + size - item.values[-1]
    return (
        f"{kind.name}: {item.text} does not divide {size}, so the last gap is {gap} instead of {step}. Write {instead}"
    )


def _nearest_divisors(step: int, size: int) -> list[int]:
    """Return the divisors of `size` (without `size`) that are nearest to `step`: one below and one above, if any."""
    divisors = [n for n in range(1, size) if size % n == 0]
    below, above = [n for n in divisors if n < step], [n for n in divisors if n > step]
    return below[-1:] + above[:1]


def _clock_changes(cron: Cron, around: datetime) -> Iterator[Finding]:
    if not cron.fields.fixed_time:
        return
    since = min(max(instant_ms(around, field="around"), FIRST_MS), LAST_MS - CHECKED_YEARS * 366 * DAY_MS) // 1000
    until = since + CHECKED_YEARS * 366 * DAY_SECONDS
    found = changes(cron.spec.tz, since, until)
    gap = next((c for c in found if c.after > c.before and cron.walls(c.at + c.before, c.at + c.after)), None)
    if gap:
        yield _gap_finding(cron, gap)
    fold = next((c for c in found if c.after < c.before and cron.walls(c.at + c.after, c.at + c.before)), None)
    if fold:
        yield _fold_finding(cron, fold)


def _gap_finding(cron: Cron, gap: Change) -> Finding:
    day, start, end = _format_change(gap)
    does = f'moves to {end} (gap="shift")' if cron.spec.gap == "shift" else 'is dropped (gap="skip")'
    text = f"on {day} the clock of {cron.spec.tz} jumps from {start} to {end}: a fire between {does}"
    return Finding("L004", f"{text}. Write a time outside {start}–{end}")


def _fold_finding(cron: Cron, fold: Change) -> Finding:
    day, start, end = _format_change(fold)
    does = {"first": "once, the first time", "last": "once, the second time", "both": "twice"}[cron.spec.overlap]
    text = f"on {day} the clock of {cron.spec.tz} repeats {start}–{end}: a fire between runs {does}"
    return Finding("L004", f'{text} (overlap="{cron.spec.overlap}"). Write a time outside {start}–{end}')


def _format_change(change: Change) -> tuple[str, str, str]:
    low, high = sorted((change.before, change.after))
    start, end = (_EPOCH + timedelta(seconds=change.at + offset) for offset in (low, high))
    return f"{start:%Y-%m-%d}", f"{start:%H:%M}", f"{end:%H:%M}"


def _missing_days(fields: CronFields) -> Iterator[Finding]:
    if fields.days.starred:
        return
    for item in fields.days.items:
        day = _needed_month_length(item)
        missing = [month for month in fields.months if _SHORT_MONTHS.get(month, 31) < day]
        if not missing:
            continue
        if missing == [2] and day == 29:
            text = f"day {item.text} does not exist in February outside leap years"
        else:
            text = f"day {item.text} does not exist in {', '.join(MONTH_WORDS[month - 1] for month in missing)}"
        yield Finding("L005", f"{text}, so nothing fires then. For the last day of the month write L")


def _needed_month_length(item: Item) -> int:
    """Return the number of days that a month must have for a day-of-month entry to match in it; 0: any number."""
    if item.special is None:
        return min(item.values)
    if item.special.what == "nearest-weekday":
        return item.special.number
    return item.special.number + 1 if item.special.what == "last" else 0
