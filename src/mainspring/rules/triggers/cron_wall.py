"""Wall times that match a cron expression.

A wall time is a number of seconds from 1970-01-01T00:00 on a clock without a zone and without clock changes. A search
that finds no wall time returns `NO_SUCH_DAY`, a number beyond all wall times; a search backwards returns its negative.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from mainspring.model.instant import DAY_SECONDS
from mainspring.rules.triggers.cron_days import NO_SUCH_DAY, CronDays
from mainspring.rules.triggers.cron_parse import CronFields


class CronWall:
    """The wall times that match one expression: each matching day combined with each matching time of day.

    The methods search and count them without listing them. `days` are the matching days, `per_day` is the number of
    matching times in each of them.
    """

    __slots__ = ("_last", "_minutes", "_seconds", "days", "per_day")

    def __init__(self, fields: CronFields) -> None:
        self.days = CronDays(fields)
        self._minutes = _minutes_of_day(fields.hours, fields.minutes)
        self._seconds = fields.seconds
        self._last = self._minutes[-1] * 60 + self._seconds[-1]
        self.per_day = len(self._minutes) * len(self._seconds)

    def next(self, wall: int) -> int:
        """Return the first matching wall time at or after `wall`, NO_SUCH_DAY if there is none."""
        day, second = divmod(wall, DAY_SECONDS)
        if second <= self._last:
            found = self.days.next_day(day)
            if found == day:
                return day * DAY_SECONDS + self._time(self._rank(second))
        else:
            found = self.days.next_day(day + 1)
        return NO_SUCH_DAY if found == NO_SUCH_DAY else found * DAY_SECONDS + self._minutes[0] * 60 + self._seconds[0]

    def prev(self, wall: int) -> int:
        """Return the last matching wall time at or before `wall`, -NO_SUCH_DAY if there is none."""
        day, second = divmod(wall, DAY_SECONDS)
        rank = self._rank(second + 1)
        if rank:
            found = self.days.prev_day(day)
            if found == day:
                return day * DAY_SECONDS + self._time(rank - 1)
        else:
            found = self.days.prev_day(day - 1)
        return -NO_SUCH_DAY if found == -NO_SUCH_DAY else found * DAY_SECONDS + self._last

    def count(self, low: int, high: int) -> int:
        """Return the number of matching wall times in [low, high)."""
        if low >= high:
            return 0
        low_day, low_second = divmod(low, DAY_SECONDS)
        high_day, high_second = divmod(high, DAY_SECONDS)
        total = self.days.count(low_day, high_day) * self.per_day
        if low_second and self.days.count(low_day, low_day + 1):
            total -= self._rank(low_second)
        if high_second and self.days.count(high_day, high_day + 1):
            total += self._rank(high_second)
        return total

    def forward(self, low: int, high: int, limit: int) -> list[int]:
        """Return the first `limit` matching wall times in [low, high), or all if there are fewer, increasing."""
        found: list[int] = []
        day, second = divmod(low, DAY_SECONDS)
        rank = self._rank(second)
        while len(found) < limit:
            at = self.days.next_day(day)
            if at * DAY_SECONDS >= high:
                break
            rank = rank if at == day else 0
            stop = min(self.per_day, rank + limit - len(found))
            if high < (at + 1) * DAY_SECONDS:
                stop = min(stop, self._rank(high - at * DAY_SECONDS))
            found += [at * DAY_SECONDS + self._time(index) for index in range(rank, stop)]
            day, rank = at + 1, 0
        return found

    def backward(self, low: int, high: int, limit: int) -> list[int]:
        """Return the last `limit` matching wall times in [low, high), or all if there are fewer, decreasing."""
        found: list[int] = []
        day, second = divmod(high, DAY_SECONDS)
        rank = self._rank(second)
        while len(found) < limit:
            at = self.days.prev_day(day)
            if (at + 1) * DAY_SECONDS <= low:
                break
            rank = rank if at == day else self.per_day
            stop = max(0, rank - (limit - len(found)))
            if low > at * DAY_SECONDS:
                stop = max(stop, self._rank(low - at * DAY_SECONDS))
            found += [at * DAY_SECONDS + self._time(index) for index in range(rank - 1, stop - 1, -1)]
            day, rank = at - 1, self.per_day
        return found

    def _rank(self, second: int) -> int:
        """Return the number of a day's matching times that lie before `second`, counted from midnight."""
        minute, rest = divmod(second, 60)
        index = bisect_left(self._minutes, minute)
        rank = index * len(self._seconds)
        if rest and index < len(self._minutes) and self._minutes[index] == minute:
            rank += bisect_left(self._seconds, rest)
        return rank

    def _time(self, rank: int) -> int:
        """Return a day's matching time number `rank`, counted from 0, as seconds from midnight."""
        index, rest = divmod(rank, len(self._seconds))
        return self._minutes[index] * 60 + self._seconds[rest]


@lru_cache(maxsize=4096)
def cron_wall(fields: CronFields) -> CronWall:
    """Return the wall times of an expression, from a cache: schedules with equal expressions share one object."""
    return CronWall(fields)


@lru_cache(maxsize=1024)
def _minutes_of_day(hours: tuple[int, ...], minutes: tuple[int, ...]) -> tuple[int, ...]:
    """Return each combination of hour and minute as minutes from midnight, increasing."""
    return tuple(hour * 60 + minute for hour in hours for minute in minutes)
