"""A second opinion on cron: its own reading of expressions, Python's `fold` rules for zones, no shortcuts shared.

An expression is read by asking, for every value, whether an entry of the field admits it. A wall time is mapped to
instants by PEP 495: both folds are converted to UTC and back, and those that come back unchanged are real. A wall
time with no real instant lies in a gap, whose end is found by walking the offsets hour by hour, then second by second.

`compare_zone` holds `Cron` against this; `make test` runs it on the zones and expressions of `test_cron_oracle.py`,
and a longer run can give it every zone there is.
"""

from __future__ import annotations

import calendar
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from random import Random
from typing import NamedTuple
from zoneinfo import ZoneInfo

from mainspring.rules.triggers import Cron

EPOCH = datetime(1970, 1, 1)
HOUR, DAY = 3600, 86_400
POLICIES = tuple((gap, overlap) for gap in ("shift", "skip") for overlap in ("first", "last", "both"))
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
#: Entries that depend on the month, which `admits` leaves to others.
MONTHLY = re.compile(r"L|LW|L-\d+|\d+W|.+#\d|(\d|SUN|MON|TUE|WED|THU|FRI|SAT)L")
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


class Difference(NamedTuple):
    """Where Cron and the oracle disagree."""

    zone: str
    expression: str
    gap: str
    overlap: str
    what: str
    expected: object
    found: object


@dataclass
class Tally:
    """How much was compared."""

    expressions: int = 0
    fires: int = 0
    windows: int = 0


# -- expressions ------------------------------------------------------------------------------------------------


def _number(text: str, names: Sequence[str], first: int) -> int:
    return names.index(text.upper()) + first if text.upper() in names else int(text)


def admits(text: str, value: int, low: int, high: int, names: Sequence[str] = ()) -> bool:
    """Whether a field of plain values, ranges and steps admits a value."""
    size = high - low + 1
    for entry in text.split(","):
        if MONTHLY.fullmatch(entry.upper()):
            continue
        base, _, step_text = entry.partition("/")
        step = int(step_text or 1)
        if base in "*?":
            distance, span = value - low, size
        elif "-" in base:
            start, end = (_number(part, names, low) for part in base.split("-"))
            span = end - start if end >= start else (end - start) % size
            distance = (value - start) % size
        else:
            start = _number(base, names, low) if high != 6 else _number(base, names, low) % 7
            distance, span = value - start, (high - start if step_text else 0)
        if 0 <= distance <= span and distance % step == 0:
            return True
    return False


def _nearest_workday(year: int, month: int, day: int) -> date:
    target, length = date(year, month, day), calendar.monthrange(year, month)[1]
    near = [date(year, month, d) for d in range(1, length + 1) if date(year, month, d).weekday() < 5]
    return min(near, key=lambda other: (abs((other - target).days), other < target))


def _special_day(entry: str, day: date) -> bool:
    length = calendar.monthrange(day.year, day.month)[1]
    if entry == "L":
        return day.day == length
    if entry == "LW":
        return day == max(
            date(day.year, day.month, d)
            for d in range(length - 3, length + 1)
            if calendar.weekday(day.year, day.month, d) < 5
        )
    if entry.startswith("L-"):
        return day.day == length - int(entry[2:])
    if entry.endswith("W"):
        wanted = int(entry[:-1])
        return wanted <= length and day == _nearest_workday(day.year, day.month, wanted)
    return False


def _special_weekday(entry: str, day: date) -> bool:
    sunday_based = (day.weekday() + 1) % 7
    if "#" in entry:
        name, nth = entry.split("#")
        return _number(name, WEEKDAYS, 0) % 7 == sunday_based and (day.day + 6) // 7 == int(nth)
    if entry.endswith("L"):
        return _number(entry[:-1], WEEKDAYS, 0) % 7 == sunday_based and (day + timedelta(days=7)).month != day.month
    return False


def split(expression: str) -> list[str]:
    parts = MACROS.get(expression, expression).split()
    return parts if len(parts) == 6 else ["0", *parts]


@lru_cache(maxsize=200_000)
def day_matches(days: str, months: str, weekdays: str, day: date) -> bool:
    if not admits(months, day.month, 1, 12, MONTHS):
        return False
    by_day = admits(days, day.day, 1, 31) or any(_special_day(entry.upper(), day) for entry in days.split(","))
    weekday = (day.weekday() + 1) % 7
    by_weekday = admits(weekdays, weekday, 0, 6, WEEKDAYS) or any(
        _special_weekday(entry.upper(), day) for entry in weekdays.split(",")
    )
    if days[0] in "*?" or weekdays[0] in "*?":
        return by_day and by_weekday
    return by_day or by_weekday


@lru_cache(maxsize=1000)
def times_of_day(seconds: str, minutes: str, hours: str) -> list[int]:
    return [
        hour * HOUR + minute * 60 + second
        for hour in range(24)
        if admits(hours, hour, 0, 23)
        for minute in range(60)
        if admits(minutes, minute, 0, 59)
        for second in range(60)
        if admits(seconds, second, 0, 59)
    ]


def is_fixed(expression: str) -> bool:
    _, minute, hour, *_ = split(expression)
    return minute[0] not in "*?" and hour[0] not in "*?"


# -- zones ------------------------------------------------------------------------------------------------------


def wall_of(at: int, info: ZoneInfo) -> int:
    """The wall clock at a UTC second, as seconds on a clock without zone."""
    local = datetime.fromtimestamp(at, info).replace(tzinfo=None)
    return (local - EPOCH) // timedelta(seconds=1)


class Shift(NamedTuple):
    """At the instant `at` the wall clock would have shown `expected` and shows `shown`."""

    at: int
    expected: int
    shown: int


@dataclass
class ZoneSpan:
    """One zone over a stretch of UTC seconds, walked hour by hour."""

    name: str
    start: int
    end: int
    info: ZoneInfo = field(init=False)
    offsets: list[int] = field(init=False)
    shifts: list[Shift] = field(init=False)
    known: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.info = ZoneInfo(self.name)
        self.base = self.start - 6 * DAY
        hours = range(self.base, self.end + 6 * DAY + 1, HOUR)
        self.offsets = [wall_of(at, self.info) - at for at in hours]
        self.shifts = []
        for index, at in enumerate(hours[1:]):
            if self.offsets[index] != self.offsets[index + 1]:
                second = next(s for s in range(at - HOUR, at + 1) if wall_of(s, self.info) - s != self.offsets[index])
                self.shifts.append(Shift(second, second + self.offsets[index], second + self.offsets[index + 1]))
        self.touched = {
            (wall // DAY) + days for s in self.shifts for wall in (s.expected, s.shown) for days in range(-2, 3)
        }

    def instants(self, wall: int) -> tuple[int, ...]:
        """Every instant at which the wall clock shows this, by PEP 495."""
        day = wall // DAY
        if day not in self.touched:
            return (wall - self.offsets[(wall - self.base) // HOUR],)
        found = self.known.get(wall)
        if found is None:
            naive = EPOCH + timedelta(seconds=wall)
            candidates = set()
            for fold in (0, 1):
                at = naive.replace(tzinfo=self.info, fold=fold).astimezone(UTC)
                if at.astimezone(self.info).replace(tzinfo=None) == naive:
                    candidates.add((at.replace(tzinfo=None) - EPOCH) // timedelta(seconds=1))
            found = self.known[wall] = tuple(sorted(candidates))
        return found

    def gap_end(self, wall: int) -> int:
        return next(s.at for s in self.shifts if s.expected <= wall < s.shown)


def fires(
    span: ZoneSpan, expression: str, gap: str, overlap: str, after: int, through: int
) -> tuple[list[int], list[int]]:
    """The fires in (after, through] in seconds, and the gap ends at which one was dropped."""
    seconds, minutes, hours, days, months, weekdays = split(expression)
    fixed, times = is_fixed(expression), times_of_day(seconds, minutes, hours)
    found: set[int] = set()
    dropped: set[int] = set()
    near = span.offsets[max(0, (after - span.base) // HOUR - 25) : (through - span.base) // HOUR + 26]
    first, last = after + min(near), through + max(near)  # no wall time outside can belong to the stretch
    for number in range(first // DAY, last // DAY + 1):
        if not day_matches(days, months, weekdays, date(1970, 1, 1) + timedelta(days=number)):
            continue
        if number not in span.touched:
            midnight = span.instants(number * DAY)[0]  # the offset is the same all day
            found.update([midnight + time for time in times])
            continue
        low, high = bisect_left(times, first - number * DAY), bisect_right(times, last - number * DAY)
        for time in times[low:high]:
            instants = span.instants(number * DAY + time)
            if not fixed or overlap == "both":
                found.update(instants)
            elif instants:
                found.add(instants[0 if overlap == "first" else -1])
            if fixed and not instants:
                (found if gap == "shift" else dropped).add(span.gap_end(number * DAY + time))
    inside = sorted(at for at in found if after < at <= through)
    return inside, sorted(at for at in dropped - found if after < at <= through)


# -- comparison -------------------------------------------------------------------------------------------------


def utc_second(year: int, month: int = 1, day: int = 1) -> int:
    return (datetime(year, month, day) - EPOCH) // timedelta(seconds=1)


def compare_span(
    span: ZoneSpan, expression: str, gap: str, overlap: str, after: int, through: int, tally: Tally, windows: int
) -> Iterable[Difference]:
    """Chains of next, counts, first and last fires of one expression over one stretch."""

    def differ(what: str, expected: object, got: object) -> Difference:
        return Difference(span.name, expression, gap, overlap, what, expected, got)

    expected, dropped = fires(span, expression, gap, overlap, after, through)
    cron = Cron(expression, span.name, gap, overlap)  # type: ignore[arg-type]
    tally.expressions += 1
    tally.fires += len(expected)
    at: int | None = after * 1000
    for wanted in expected:
        assert at is not None
        at = cron.next_ms(at)
        if at != wanted * 1000:
            yield differ("next", wanted, at)
            return
    at = cron.next_ms(at or 0)
    if at is not None and at <= through * 1000:
        yield differ("next beyond", None, at)
    listed = cron.fires_ms(after * 1000, through * 1000, len(expected) + 1)
    if listed != [at * 1000 for at in expected]:
        yield differ("fires", len(expected), len(listed))
    if cron.count_ms(after * 1000, through * 1000) != len(expected):
        yield differ("count", len(expected), cron.count_ms(after * 1000, through * 1000))
    if cron.dropped_ms(after * 1000, through * 1000) != [at * 1000 for at in dropped]:
        yield differ("dropped", dropped, cron.dropped_ms(after * 1000, through * 1000))
    random = Random(f"{span.name} {expression} {after}")
    edges = [s.at for s in span.shifts if after <= s.at <= through] or [after]
    for _ in range(windows):
        tally.windows += 1
        near = random.choice(edges) + random.randint(-2 * DAY, 2 * DAY)
        low, high = sorted((random.choice((near, random.randint(after, through))), random.randint(after, through)))
        low, high = max(low, after), min(high, through)
        inside = expected[bisect_right(expected, low) : bisect_right(expected, high)]
        if cron.count_ms(low * 1000, high * 1000) != len(inside):
            yield differ(f"count {low}..{high}", len(inside), cron.count_ms(low * 1000, high * 1000))
        n = random.choice((0, 1, 2, 7, 100))
        if cron.last_ms(low * 1000, high * 1000, n) != [at * 1000 for at in inside[max(0, len(inside) - n) :]]:
            yield differ(f"last {n} of {low}..{high}", inside[-n:], cron.last_ms(low * 1000, high * 1000, n))
        if cron.fires_ms(low * 1000, high * 1000, n) != [at * 1000 for at in inside[:n]]:
            yield differ(f"first {n} of {low}..{high}", inside[:n], cron.fires_ms(low * 1000, high * 1000, n))
        index = bisect_left(expected, low + 1)
        if index < len(expected) and cron.next_ms(low * 1000 + random.randint(0, 999)) != expected[index] * 1000:
            yield differ(f"next after {low}", expected[index], cron.next_ms(low * 1000))


def compare_zone(
    zone: str, expressions: Sequence[str], years: Sequence[int], tally: Tally | None = None
) -> list[Difference]:
    """Hold every expression against the oracle in one zone.

    Expressions of up to 50 fires a day are compared over whole years under one policy, those chosen in turn; around
    every offset change, all are compared, and those with the choice under half of the policies, in turn.
    """
    tally = Tally() if tally is None else tally
    found: list[Difference] = []
    turn = sum(map(ord, zone))
    for year in years:
        span = ZoneSpan(zone, utc_second(year), utc_second(year + 1))
        for index, expression in enumerate(expressions):
            dense = len(times_of_day(*split(expression)[:3]))
            gap, overlap = POLICIES[(turn + index) % len(POLICIES)]
            if dense <= 50:
                found += compare_span(span, expression, gap, overlap, span.start, span.end, tally, 4)
            around = 2 * DAY if dense <= 50 else 12 * HOUR if dense <= 1440 else HOUR if dense < 20_000 else HOUR // 4
            fixed = is_fixed(expression) and dense <= 50
            policies = POLICIES[(turn + index) % 2 :: 2] if fixed else ((gap, overlap),)
            for shift in span.shifts:
                low, high = max(shift.at - around, span.start), min(shift.at + around, span.end)
                if dense >= 20_000 and abs(shift.shown - shift.expected) > 2 * HOUR:
                    continue  # a whole day of seconds adds time, not sense
                if low < high:
                    for gap, overlap in policies:
                        found += compare_span(span, expression, gap, overlap, low, high, tally, 2)
    return found
