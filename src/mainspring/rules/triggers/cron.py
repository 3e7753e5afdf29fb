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
from mainspring.model.instant import Ms, load_zone
from mainspring.model.trigger import CronSpec, Fold, Gap
from mainspring.rules.triggers.base import FIRST_SECOND, LAST_SECOND, Finding, Trigger
from mainspring.rules.triggers.cron_parse import CronFields, parse
from mainspring.rules.triggers.cron_wall import CronWall, cron_wall
from mainspring.rules.triggers.zone_table import BLOCK_BITS, DAY_SECONDS, Piece, Repeats, block_pieces


class Cron(Trigger):
    """A trigger that fires when the clock of a time zone matches a cron expression.

    Without `tz` the zone is UTC, and `lint` reports that. If a clock change skips the wall time of a fire, `gap` moves
    the fire to the end of the gap ("shift") or drops it ("skip"). `overlap` selects the fires of a time that occurs
    twice. Both apply only to expressions that name times of day: if the minute or hour begins with `*`, the trigger
    fires whenever the clock matches. `hash_id` is the text from which the values of `H` are derived.
    """

    __slots__ = ("_repeats", "_wall", "_zone_given", "_zone_info", "fields")

    spec: CronSpec
    fields: CronFields
    _wall: CronWall
    _repeats: Repeats
    _zone_info: ZoneInfo
    _zone_given: bool

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
            starts, pieces = block_pieces(name, at >> BLOCK_BITS, repeats)
            piece = pieces[bisect_right(starts, at) - 1]
            if at == piece.start and self._has_shifted_fire(piece):
                return at * 1000
            found = wall.next(max(at + piece.offset, piece.low))
            if found < piece.high:
                found -= piece.offset
                return found * 1000 if found <= LAST_SECOND else None
            at = self._skip(piece.end)
        return None

    def count_ms(self, after: Ms, through: Ms) -> int:
        total = 0
        for piece, low, high in self._stretches(after, through):
            total += self._wall.count(low, high)
            if piece.gap_low < piece.gap_high and low <= piece.start + piece.offset < high:
                total += self._has_shifted_fire(piece)
        return total

    def fires_ms(self, after: Ms, through: Ms, limit: int) -> list[Ms]:
        found: list[Ms] = []
        for piece, low, high in self._stretches(after, through):
            if len(found) >= limit:
                break
            if low <= piece.start + piece.offset < high and self._has_shifted_fire(piece):
                found.append(piece.start * 1000)
            walls = self._wall.forward(low, high, limit - len(found))
            found += [(wall - piece.offset) * 1000 for wall in walls]
        return found

    def last_ms(self, after: Ms, through: Ms, n: int) -> list[Ms]:
        found: list[Ms] = []
        for piece, low, high in self._stretches_back(after, through):
            if len(found) >= n:
                break
            walls = self._wall.backward(low, high, n - len(found))
            found += [(wall - piece.offset) * 1000 for wall in walls]
            if len(found) < n and low <= piece.start + piece.offset < high and self._has_shifted_fire(piece):
                found.append(piece.start * 1000)
        return found[::-1]

    def dropped_ms(self, after: Ms, through: Ms) -> list[Ms]:
        """Return the ends of the gaps in (after, through] that dropped a fire and at which nothing fires anyway."""
        if self.spec.gap != "skip" or not self.fields.fixed_time:
            return []
        return [
            piece.start * 1000
            for piece, low, high in self._stretches(after, through)
            if low <= piece.start + piece.offset < high and self._has_lost_fire(piece)
        ]

    def _has_shifted_fire(self, piece: Piece) -> bool:
        """Return True if the fires in the gap before a piece become one fire at the piece's start (`gap="shift"`)."""
        return piece.gap_low < piece.gap_high and self.spec.gap == "shift" and self._has_lost_fire(piece)

    def _has_lost_fire(self, piece: Piece) -> bool:
        """Return True if a match lies in the gap before a piece, and the end of the gap is no match itself."""
        if piece.gap_low >= piece.gap_high or not self.fields.fixed_time:
            return False
        return self._wall.next(piece.gap_low) < piece.gap_high != self._wall.next(piece.gap_high)

    def _skip(self, at: int) -> int:
        """Return the instant from which the search for fires at or after `at` may go on: nothing fires before it.

        A day of margin is enough, because wall time and UTC never differ by a day.
        """
        return max(at, self._wall.next(at - DAY_SECONDS) - DAY_SECONDS)

    def _skip_back(self, at: int) -> int:
        """Return the instant from which the search for fires at or before `at` may go back: nothing fires after it."""
        return min(at, self._wall.prev(at + DAY_SECONDS) + DAY_SECONDS)

    def _stretches(self, after: Ms, through: Ms) -> Iterator[tuple[Piece, int, int]]:
        """Yield the pieces of (after, through] in order, each with the bounds [low, high) of the wall times."""
        at, last = max(after // 1000 + 1, FIRST_SECOND), min(through // 1000, LAST_SECOND)
        at = self._skip(at)
        while at <= last:
            starts, pieces = block_pieces(self.spec.tz, at >> BLOCK_BITS, self._repeats)
            piece = pieces[bisect_right(starts, at) - 1]
            yield piece, *_window(piece, at, last)
            at = self._skip(piece.end)

    def _stretches_back(self, after: Ms, through: Ms) -> Iterator[tuple[Piece, int, int]]:
        """Yield what `_stretches` yields, from the last piece to the first."""
        first, at = max(after // 1000 + 1, FIRST_SECOND), min(through // 1000, LAST_SECOND)
        at = self._skip_back(at)
        while at >= first:
            starts, pieces = block_pieces(self.spec.tz, at >> BLOCK_BITS, self._repeats)
            piece = pieces[bisect_right(starts, at) - 1]
            yield piece, *_window(piece, first, at)
            at = self._skip_back(piece.start - 1)

    # -- words ------------------------------------------------------------------------------------------

    def describe(self) -> str:
        from mainspring.rules.triggers.describe import describe_cron

        return describe_cron(self.fields, self.spec.tz)

    def lint(self, *, zone_given: bool | None = None, around: datetime | None = None) -> list[Finding]:
        """Return a finding for each probable mistake. It checks clock changes of six years from `around` or 2025."""
        from mainspring.rules.triggers.lint import lint_cron

        return lint_cron(self, self._zone_given if zone_given is None else zone_given, around)

    @property
    def never(self) -> bool:
        """True if no day can ever match, as with 30 February: the trigger never fires."""
        return self._wall.days.never

    def walls(self, low: int, high: int) -> int:
        """Return the number of matching wall times in [low, high), in seconds from 1970 on a clock without zone."""
        return self._wall.count(low, high)

    def _zone(self) -> ZoneInfo | None:
        return self._zone_info


def _window(piece: Piece, first: int, last: int) -> tuple[int, int]:
    """Return the bounds [low, high) of the wall times of a piece that count and whose instants lie in [first, last]."""
    return max(first + piece.offset, piece.low), min(last + 1 + piece.offset, piece.high)


def _check_one_of(field: str, value: object, choices: Any) -> None:
    """Raise `InvalidInput` unless the value is one of `choices`, a `Literal` type."""
    known = get_args(choices)
    if value not in known:
        fix = (
            suggest_nearest(value, known) if isinstance(value, str) else ""
        ) or f"Write one of {', '.join(map(repr, known))}"
        raise InvalidInput(field, f"{value!r} is not a choice", fix)
