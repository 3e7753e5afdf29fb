"""Zone tables: the history of a time zone as periods of constant offset, cached for the computation of cron fires.

The time line is cut into blocks of about a year. A block holds the periods between the changes of the zone's offset. It
is computed once: the offset is read day by day, and where it differs, the instant of the change is found by bisection.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from mainspring.model.instant import DAY_SECONDS, load_zone
from mainspring.rules.triggers.base import FIRST_SECOND, LAST_SECOND

#: A block is 2**25 seconds, about 388 days.
BLOCK_BITS = 25
#: An offset change at most this far outside a block can repeat wall times inside the block. No change shifts a clock by
#: more than a day.
BLOCK_MARGIN_SECONDS = 4 * DAY_SECONDS

#: Which of the instants with one wall time count, if a clock change repeats the wall time.
Repeats = Literal["first", "last", "both"]


class Period(NamedTuple):
    """A period of constant offset: the instants [start, end) in UTC seconds, where wall time = instant + offset.

    Only the wall times [low, high) of the period count: its other wall times also occur in another period, and count
    there. [gap_low, gap_high) are the wall times that the clock skipped at `start`; it is empty if none was skipped.
    """

    start: int
    end: int
    offset: int
    low: int
    high: int
    gap_low: int
    gap_high: int


class Change(NamedTuple):
    """A change of a zone's offset at the instant `at` (UTC seconds), from the offset `before` to `after` (seconds)."""

    at: int
    before: int
    after: int


def changes(name: str, since: int, until: int) -> list[Change]:
    """Return the offset changes of the zone `name` in [since, until), which are UTC seconds, in order."""
    found: list[Change] = []
    for block in range(since >> BLOCK_BITS, ((until - 1) >> BLOCK_BITS) + 1):
        start, end = max(since, block << BLOCK_BITS), min(until, (block + 1) << BLOCK_BITS)
        found += [change for change in _block_changes(name, block)[1] if start <= change.at < end]
    return found


@lru_cache(maxsize=4096)
def block_periods(name: str, block: int, repeats: Repeats) -> tuple[list[int], list[Period]]:
    """Return the starts of the periods in a block, to bisect in, and the periods themselves.

    `name` is the zone's name, `block` the number of the block: its first instant, shifted right by `BLOCK_BITS`.
    `repeats`: which instants count if a clock change repeats their wall time.
    """
    first, last = block << BLOCK_BITS, (block + 1) << BLOCK_BITS
    offset, found = _block_changes(name, block)
    cuts = [first - BLOCK_MARGIN_SECONDS, *(change.at for change in found), last + BLOCK_MARGIN_SECONDS]
    offsets = [offset, *(change.after for change in found)]
    walls = [(cuts[i] + offset, cuts[i + 1] + offset) for i, offset in enumerate(offsets)]
    periods = []
    for i, offset in enumerate(offsets):
        start, end = max(cuts[i], first), min(cuts[i + 1], last)
        if start >= end:
            continue
        low, high = _counted_walls(walls, i, repeats)
        gap_low = gap_high = start + offset
        if i and cuts[i] == start:
            gap_low = min(gap_high, walls[i - 1][1])
        periods.append(Period(start, end, offset, max(low, start + offset), min(high, end + offset), gap_low, gap_high))
    return [period.start for period in periods], periods


def _counted_walls(walls: list[tuple[int, int]], i: int, repeats: Repeats) -> tuple[int, int]:
    """Return the bounds [low, high) of the wall times of period `i` that count.

    `walls` are the bounds of all wall times of each period. "first" leaves out wall times that occur in an earlier
    period, "last" those that occur in a later one, "both" none.
    """
    low, high = walls[i]
    if repeats == "first":
        low = max([low, *(wall_end for _, wall_end in walls[:i])])
    elif repeats == "last":
        high = min([high, *(wall_start for wall_start, _ in walls[i + 1 :])])
    return low, high


@lru_cache(maxsize=4096)
def _block_changes(name: str, block: int) -> tuple[int, tuple[Change, ...]]:
    """Return two values: the zone's offset at the start of a range, in seconds, and its changes in the range, in order.

    The range is block number `block` with a margin of `BLOCK_MARGIN_SECONDS` on both sides.
    """
    if name in ("UTC", "Etc/UTC"):
        return 0, ()
    info = load_zone(name)
    at, last = (block << BLOCK_BITS) - BLOCK_MARGIN_SECONDS, ((block + 1) << BLOCK_BITS) + BLOCK_MARGIN_SECONDS
    opening = before = _offset(info, at)
    found = []
    while at < last:
        step = min(at + DAY_SECONDS, last)
        after = _offset(info, step)
        if after != before:
            found.append(Change(_bisect(info, at, step, before), _seconds(before), _seconds(after)))
        at, before = step, after
    return _seconds(opening), tuple(found)


def _bisect(info: ZoneInfo, low: int, high: int, before: timedelta | None) -> int:
    """Return the first instant in (low, high], in UTC seconds, at which the zone's offset is no longer `before`."""
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(info, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _offset(info: ZoneInfo, at: int) -> timedelta | None:
    return datetime.fromtimestamp(min(max(at, FIRST_SECOND), LAST_SECOND), info).utcoffset()


def _seconds(offset: timedelta | None) -> int:
    return 0 if offset is None else offset.days * DAY_SECONDS + offset.seconds
