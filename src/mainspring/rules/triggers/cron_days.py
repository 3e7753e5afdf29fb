"""Days that match a cron expression: found and counted month by month, with bit masks.

There are 28 kinds of month: a month has 28 to 31 days, and begins on one of seven weekdays. For each kind, the matching
days are computed once, as a bit mask with bit 1 for the first day of the month. In this module, a day is the number of
days since 1970-01-01, and a weekday counts from Sunday = 0, as in cron. `NO_SUCH_DAY` is a number beyond all days.
"""

from __future__ import annotations

from datetime import date

from mainspring.rules.triggers.cron_parse import CronFields

#: Returned by a search forwards that finds no matching day or second; a search backwards returns -NO_SUCH_DAY. It lies
#: beyond every real day and second.
NO_SUCH_DAY = 1 << 60
#: `date.toordinal()` of 1970-01-01.
_EPOCH_ORDINAL = 719_163
_FIRST_DAY = 1 - _EPOCH_ORDINAL
_LAST_DAY = date.max.toordinal() - _EPOCH_ORDINAL
#: _LENGTHS[is_leap_year][month]: days of the month, from 1.
_LENGTHS = (
    (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31),
    (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31),
)
#: _WEEKS[b][w]: bit mask of the days with weekday w, in a month that begins on weekday b.
_WEEKS = tuple(
    tuple(sum(1 << day for day in range(1, 32) if (begin + day - 1) % 7 == weekday) for weekday in range(7))
    for begin in range(7)
)


class CronDays:
    """The days that match one expression. `every_day`: True if all days match. `never`: True if no day can match."""

    __slots__ = ("_fields", "_masks", "_months", "every_day", "never")

    def __init__(self, fields: CronFields) -> None:
        self._fields = fields
        self._months = [month in fields.months for month in range(13)]
        self._masks: list[int | None] = [None] * 28
        all_days = len(fields.days.values) == 31
        all_weekdays = len(fields.weekdays.values) == 7
        whole = (all_days or all_weekdays) if fields.days_or_weekdays else (all_days and all_weekdays)
        self.every_day = whole and len(fields.months) == 12
        self.never = not (whole or any(self._kind(begin, n) for n in self._possible_lengths() for begin in range(7)))

    def _possible_lengths(self) -> set[int]:
        return {lengths[month] for lengths in _LENGTHS for month in self._fields.months}

    def next_day(self, day: int) -> int:
        """Return the first matching day at or after a day, NO_SUCH_DAY if there is none up to the year 9999."""
        if day > _LAST_DAY or self.never:
            return NO_SUCH_DAY
        day = max(day, _FIRST_DAY)
        if self.every_day:
            return day
        today = date.fromordinal(day + _EPOCH_ORDINAL)
        year, month = today.year, today.month
        first = day - today.day + 1
        rest = self._month(first, year, month) >> today.day << today.day
        while not rest:
            first += _LENGTHS[_leap(year)][month]
            month += 1
            if month == 13:
                year, month = year + 1, 1
                if year > 9999:
                    return NO_SUCH_DAY
            rest = self._month(first, year, month)
        return first + (rest & -rest).bit_length() - 2

    def prev_day(self, day: int) -> int:
        """Return the last matching day at or before a day, -NO_SUCH_DAY if there is none."""
        if day < _FIRST_DAY or self.never:
            return -NO_SUCH_DAY
        day = min(day, _LAST_DAY)
        if self.every_day:
            return day
        today = date.fromordinal(day + _EPOCH_ORDINAL)
        year, month = today.year, today.month
        first = day - today.day + 1
        rest = self._month(first, year, month) & ((2 << today.day) - 1)
        while not rest:
            month -= 1
            if month == 0:
                year, month = year - 1, 12
                if year < 1:
                    return -NO_SUCH_DAY
            first -= _LENGTHS[_leap(year)][month]
            rest = self._month(first, year, month)
        return first + rest.bit_length() - 2

    def count(self, low: int, high: int) -> int:
        """Return the number of matching days in [low, high)."""
        low, high = max(low, _FIRST_DAY), min(high, _LAST_DAY + 1)
        if low >= high or self.never:
            return 0
        if self.every_day:
            return high - low
        today = date.fromordinal(low + _EPOCH_ORDINAL)
        year, month = today.year, today.month
        first = low - today.day + 1
        rest = self._month(first, year, month) >> today.day << today.day
        total = 0
        while True:
            length = _LENGTHS[_leap(year)][month]
            if first + length >= high:
                return total + (rest & ((1 << (high - first + 1)) - 1)).bit_count()
            total += rest.bit_count()
            first += length
            month += 1
            if month == 13:
                year, month = year + 1, 1
            rest = self._month(first, year, month)

    def _month(self, first: int, year: int, month: int) -> int:
        """Return the matching days of a month as bits 1 to 31. `first` is its first day, counted from 1970-01-01."""
        if not self._months[month]:
            return 0
        begin = (first + 4) % 7
        length = _LENGTHS[_leap(year)][month]
        mask = self._masks[begin * 4 + length - 28]
        return self._kind(begin, length) if mask is None else mask

    def _kind(self, begin: int, length: int) -> int:
        """Return the mask of the matching days of a kind of month, and cache it.

        `begin` is the weekday of the month's first day, `length` the number of its days.
        """
        fields = self._fields
        by_day = _by_day(fields, begin, length)
        by_weekday = _by_weekday(fields, begin, length)
        mask = by_day | by_weekday if fields.days_or_weekdays else by_day & by_weekday
        mask &= (2 << length) - 2
        self._masks[begin * 4 + length - 28] = mask
        return mask


def _by_day(fields: CronFields, begin: int, length: int) -> int:
    """Return the mask of the days that the day-of-month field matches in a month of `length` days.

    `begin` is the weekday of the month's first day.
    """
    mask = sum(1 << day for day in fields.days.values)
    for kind, number, _ in fields.days.specials:
        if kind == "last" and number < length:
            mask |= 1 << (length - number)
        elif kind == "last-weekday":
            mask |= 1 << _nearest_weekday(length, begin, length)
        elif kind == "nearest-weekday" and number <= length:
            mask |= 1 << _nearest_weekday(number, begin, length)
    return mask


def _by_weekday(fields: CronFields, begin: int, length: int) -> int:
    """Return the mask of the days that the day-of-week field matches in a month of `length` days.

    `begin` is the weekday of the month's first day.
    """
    weeks = _WEEKS[begin]
    mask = sum(weeks[weekday] for weekday in fields.weekdays.values)
    for kind, number, weekday in fields.weekdays.specials:
        days = [day for day in range(1, length + 1) if weeks[weekday] >> day & 1]
        if kind == "last":
            mask |= 1 << days[-1]
        elif kind == "nth" and number <= len(days):
            mask |= 1 << days[number - 1]
    return mask


def _nearest_weekday(day: int, begin: int, length: int) -> int:
    """Return the working day (Monday to Friday) of the month that is nearest to its day `day`.

    `begin` is the weekday of the month's first day, `length` the number of its days.
    """
    weekday = (begin + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
