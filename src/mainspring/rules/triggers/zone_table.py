"""Zone tables: a zone's history as pieces of constant offset, cached for cron arithmetic.

The time line is cut into blocks of about a year. A block is computed once, by reading the zone's offset day by day and
bisecting where it differs. It holds the pieces between the offset changes.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from mainspring.model.instant import load_zone
from mainspring.rules.triggers.base import FIRST_SECOND, LAST_SECOND

DAY_SECONDS = 86_400
#: A block is 2**25 seconds, about 388 days.
BLOCK_BITS = 25
#: Offset changes this near to a block, in seconds, still matter inside it; no change moves a clock by more than a day.
_MARGIN = 4 * DAY_SECONDS

#: Which instants of a repeated wall time count.
Repeats = Literal["first", "last", "both"]


class Piece(NamedTuple):
    """The instants [start, end) in UTC seconds, where wall time = instant + offset.

    Of the piece's wall times only [low, high) count: the rest repeats those of another piece. [gap_low, gap_high) are
    the wall times that the clock jumped over at `start`; the interval is empty if it did not jump.
    """

    start: int
    end: int
    offset: int
    low: int
    high: int
    gap_low: int
    gap_high: int


class Change(NamedTuple):
    """A change of offset at the instant `at`, in UTC seconds, from `before` to `after` seconds."""

    at: int
    before: int
    after: int


def changes(name: str, since: int, until: int) -> list[Change]:
    """Return the zone's offset changes at instants in [since, until), in order."""
    found: list[Change] = []
    for block in range(since >> BLOCK_BITS, ((until - 1) >> BLOCK_BITS) + 1):
        start, end = max(since, block << BLOCK_BITS), min(until, (block + 1) << BLOCK_BITS)
        found += [change for change in _block_changes(name, block)[1] if start <= change.at < end]
    return found


@lru_cache(maxsize=4096)
def block_pieces(name: str, block: int, repeats: Repeats) -> tuple[list[int], list[Piece]]:
    """Return the starts of a block's pieces, to bisect in, and the pieces."""
    first, last = block << BLOCK_BITS, (block + 1) << BLOCK_BITS
    offset, found = _block_changes(name, block)
    cuts = [first - _MARGIN, *(change.at for change in found), last + _MARGIN]
    offsets = [offset, *(change.after for change in found)]
    walls = [(cuts[i] + offset, cuts[i + 1] + offset) for i, offset in enumerate(offsets)]
    pieces = []
    for i, offset in enumerate(offsets):
        start, end = max(cuts[i], first), min(cuts[i + 1], last)
        if start >= end:
            continue
        low, high = _counted_walls(walls, i, repeats)
        gap_low = gap_high = start + offset
        if i and cuts[i] == start:
            gap_low = min(gap_high, walls[i - 1][1])
        pieces.append(Piece(start, end, offset, max(low, start + offset), min(high, end + offset), gap_low, gap_high))
    return [piece.start for piece in pieces], pieces


def _counted_walls(walls: list[tuple[int, int]], i: int, repeats: Repeats) -> tuple[int, int]:
    """Return the wall times of piece i that count: without those of earlier (`first`) or later (`last`) pieces."""
    low, high = walls[i]
    if repeats == "first":
        low = max([low, *(wall_end for _, wall_end in walls[:i])])
    elif repeats == "last":
        high = min([high, *(wall_start for wall_start, _ in walls[i + 1 :])])
    return low, high


@lru_cache(maxsize=4096)
def _block_changes(name: str, block: int) -> tuple[int, tuple[Change, ...]]:
    """Return the offset just before a block, and the changes in it and near it."""
    if name in ("UTC", "Etc/UTC"):
        return 0, ()
    info = load_zone(name)
    at, last = (block << BLOCK_BITS) - _MARGIN, ((block + 1) << BLOCK_BITS) + _MARGIN
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
    """Return the first instant in (low, high] whose offset is no longer `before`."""
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
