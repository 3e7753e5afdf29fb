"""`Cron`: a trigger that fires at the wall times of a cron expression, by the clock of a time zone.

`cron_wall.py` finds matching wall times, `zone_table.py` maps wall times to instants. This module combines them by
the policies `gap` and `overlap` for wall times that a clock change skips or repeats.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime
from typing import Any, get_args
from zoneinfo import ZoneInfo

from mainspring.model.errors import InvalidInput, suggest_nearest
from mainspring.model.instant import DAY_SECONDS, Ms, load_zone
from mainspring.model.option_hints import refuse_unknown_options
from mainspring.model.trigger import CronSpec, Fold, Gap
from mainspring.rules.triggers.base import FIRST_SECOND, LAST_SECOND, Finding, Trigger
from mainspring.rules.triggers.cron_parse import CronFields, parse
from mainspring.rules.triggers.cron_wall import CronWall, cron_wall
from mainspring.rules.triggers.zone_table import BLOCK_BITS, Period, Repeats, block_periods


class Cron(Trigger):
    """A trigger that fires when the clock of a time zone matches a cron expression.

    Without `tz` the zone is UTC, and `lint` reports that no zone was given if the zone matters. If a clock change skips
    the wall time of a fire, `gap` decides: with "shift" the trigger fires at the end of the gap, with "skip" the fire
    does not run. If a clock change repeats the wall time, `overlap` decides: the trigger fires the first time, the last
    time, or both times. `gap` and `overlap` apply only to expressions that name times of day: if the minute or hour
    begins with `*` or `?`, the trigger fires whenever the clock matches. `hash_id` is the text from which the values of
    `H` are derived.
    """

    __slots__ = ("_repeats", "_wall", "_zone_given", "_zone_info", "fields")

    spec: CronSpec
    fields: CronFields
    _wall: CronWall
    _repeats: Repeats
    _zone_info: ZoneInfo
    _zone_given: bool

    @refuse_unknown_options("Cron(…)")
    def __init__(
        self,
        expr: str,
        tz: str | ZoneInfo | None = None,
        gap: Gap = "shift",
        overlap: Fold = "first",
        hash_id: str | None = None,
    ) -> None:
        fields = parse(expr, hash_id)
        name = tz.key if isinstance(tz, ZoneInfo) and tz.key else tz
        info = load_zone("UTC" if name is None else name)
        _check_one_of("gap", gap, Gap)
        _check_one_of("overlap", overlap, Fold)
        self._set(
            spec=CronSpec(expr, info.key, gap, overlap, hash_id),
            fields=fields,
            _wall=cron_wall(fields),
            _repeats=overlap if fields.fixed_time else "both",
            _zone_info=info,
            _zone_given=tz is not None,
        )

    @classmethod
    def from_spec(cls, spec: CronSpec) -> Cron:
        """Return the trigger of a stored spec."""
        return cls(spec.expr, spec.tz, spec.gap, spec.overlap, spec.hash_id)

    # -- instants ---------------------------------------------------------------------------------------

    def next_ms(self, after: Ms) -> Ms | None:
        at = max(after // 1000 + 1, FIRST_SECOND)
        wall, name, repeats = self._wall, self.spec.tz, self._repeats
        while at <= LAST_SECOND:
            starts, periods = block_periods(name, at >> BLOCK_BITS, repeats)
            period = periods[bisect_right(starts, at) - 1]
            if at == period.start and self._has_shifted_fire(period):
                return at * 1000
            found = wall.next(max(at + period.offset, period.low))
            if found < period.high:
                found -= period.offset
                return found * 1000 if found <= LAST_SECOND else None
            at = self._skip(period.end)
        return None

    def count_ms(self, after: Ms, through: Ms) -> int:
        total = 0
        for period, low, high in self._periods(after, through):
            total += self._wall.count(low, high)
            if period.gap_low < period.gap_high and low <= period.start + period.offset < high:
                total += self._has_shifted_fire(period)
        return total

    def fires_ms(self, after: Ms, through: Ms, limit: int) -> list[Ms]:
        found: list[Ms] = []
        for period, low, high in self._periods(after, through):
            if len(found) >= limit:
                break
            if low <= period.start + period.offset < high and self._has_shifted_fire(period):
                found.append(period.start * 1000)
            walls = self._wall.forward(low, high, limit - len(found))
            found += [(wall - period.offset) * 1000 for wall in walls]
        return found

    def last_ms(self, after: Ms, through: Ms, n: int) -> list[Ms]:
        found: list[Ms] = []
        for period, low, high in self._periods_back(after, through):
            if len(found) >= n:
                break
            walls = self._wall.backward(low, high, n - len(found))
            found += [(wall - period.offset) * 1000 for wall in walls]
            if len(found) < n and low <= period.start + period.offset < high and self._has_shifted_fire(period):
                found.append(period.start * 1000)
        return found[::-1]

    def dropped_ms(self, after: Ms, through: Ms) -> list[Ms]:
        """Return the instants in (after, through] that stand for dropped fires, which `gap="skip"` keeps from running.

        A gap is the wall times that a clock change skips. All fires in one gap are dropped, and the instant of its end
        stands for them. It is left out if the trigger fires at that instant anyway.
        """
        if self.spec.gap != "skip" or not self.fields.fixed_time:
            return []
        return [
            period.start * 1000
            for period, low, high in self._periods(after, through)
            if low <= period.start + period.offset < high and self._has_lost_fire(period)
        ]

    def _has_shifted_fire(self, period: Period) -> bool:
        """Return True if the fires in the gap before a period become one fire at its start (`gap="shift"`)."""
        return period.gap_low < period.gap_high and self.spec.gap == "shift" and self._has_lost_fire(period)

    def _has_lost_fire(self, period: Period) -> bool:
        """Return True if a matching time lies in the gap before a period, and the end of the gap does not match.

        Always False for an expression that names no times of day.
        """
        if period.gap_low >= period.gap_high or not self.fields.fixed_time:
            return False
        return self._wall.next(period.gap_low) < period.gap_high != self._wall.next(period.gap_high)

    def _skip(self, at: int) -> int:
        """Return the instant, in seconds, from which to search for fires at or after `at`: nothing fires before it.

        A day of margin is enough, because wall time and UTC never differ by a day.
        """
        return max(at, self._wall.next(at - DAY_SECONDS) - DAY_SECONDS)

    def _skip_back(self, at: int) -> int:
        """Return the instant, in seconds, from which to search back for fires at or before `at`: none lies after it."""
        return min(at, self._wall.prev(at + DAY_SECONDS) + DAY_SECONDS)

    def _periods(self, after: Ms, through: Ms) -> Iterator[tuple[Period, int, int]]:
        """Yield the zone's periods of constant offset in (after, through], but skip most in which nothing fires.

        They come in order. With each period, yield the bounds [low, high) of its wall times that count and lie in
        (after, through].
        """
        at, last = max(after // 1000 + 1, FIRST_SECOND), min(through // 1000, LAST_SECOND)
        at = self._skip(at)
        while at <= last:
            starts, periods = block_periods(self.spec.tz, at >> BLOCK_BITS, self._repeats)
            period = periods[bisect_right(starts, at) - 1]
            yield period, *_window(period, at, last)
            at = self._skip(period.end)

    def _periods_back(self, after: Ms, through: Ms) -> Iterator[tuple[Period, int, int]]:
        """Yield the periods that `_periods` yields, with the bounds of their wall times, from the last to the first."""
        first, at = max(after // 1000 + 1, FIRST_SECOND), min(through // 1000, LAST_SECOND)
        at = self._skip_back(at)
        while at >= first:
            starts, periods = block_periods(self.spec.tz, at >> BLOCK_BITS, self._repeats)
            period = periods[bisect_right(starts, at) - 1]
            yield period, *_window(period, first, at)
            at = self._skip_back(period.start - 1)

    # -- words ------------------------------------------------------------------------------------------

    def describe(self) -> str:
        from mainspring.rules.triggers.describe import describe_cron

        return describe_cron(self.fields, self.spec.tz)

    def lint(self, *, zone_given: bool | None = None, around: datetime | None = None) -> list[Finding]:
        """Return a finding for each probable mistake in the expression.

        Clock changes in the six years from `around` (by default from 2025) are checked. `zone_given` None: a zone was
        given if `tz` was passed when the trigger was made.
        """
        from mainspring.rules.triggers.lint import lint_cron

        return lint_cron(self, self._zone_given if zone_given is None else zone_given, around)

    @property
    def never(self) -> bool:
        """True if no day can match, such as 30 February, so that the trigger never fires."""
        return self._wall.days.never

    def walls(self, low: int, high: int) -> int:
        """Return the number of matching wall times in [low, high).

        A wall time is a number of seconds from 1970-01-01T00:00 on a clock without a zone.
        """
        return self._wall.count(low, high)

    def _zone(self) -> ZoneInfo | None:
        return self._zone_info


def _window(period: Period, first: int, last: int) -> tuple[int, int]:
    """Return the bounds [low, high) of the wall times of a period that count and are instants in [first, last]."""
    return max(first + period.offset, period.low), min(last + 1 + period.offset, period.high)


def _check_one_of(field: str, value: object, choices: Any) -> None:
    """Raise `InvalidInput`, which names `field`, unless the value is one of `choices`, a `Literal` type."""
    known = get_args(choices)
    if value not in known:
        fix = (
            suggest_nearest(value, known) if isinstance(value, str) else ""
        ) or f"Write one of {', '.join(map(repr, known))}"
        raise InvalidInput(field, f"{value!r} is not a choice", fix)
