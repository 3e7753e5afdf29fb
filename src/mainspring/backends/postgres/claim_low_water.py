"""Low-water marks of claims: per priority, the ready time from which a claim reads due runs; and how many it reads.

While any transaction holds an old snapshot, the server keeps the index entries of all runs that were claimed since, and
a claim that reads from the beginning passes all of them. So the next claim of a backlog begins at the ready time of the
first run that the claim before it found. A run that is inserted late with an earlier time is claimed when the backlog
ends, or within a second.

Other claimers lock the first runs. For a second after a claim found runs locked, claims read further behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.instant import Ms
from mainspring.ports.store import Claim, Offer

PRIORITIES = 4
#: At the latest after this time a claim reads from the beginning again, in milliseconds.
FULL_SCAN_MS = 1_000
#: The next run of a priority without due runs may have a ready time up to this far in the past: a process whose clock
#: is behind set it.
_MAX_CLOCK_LAG_MS = 5_000
#: The most runs that one claim reads for each run that it wants.
_MAX_DEPTH_RATIO = 8
#: Marks with which a claim reads from the beginning.
NO_LOW_WATER: tuple[Ms, ...] = (0,) * PRIORITIES


class ClaimLowWater:
    """The low-water marks of one store object: per priority, the ready time before which no run was left to claim.

    It also keeps how many due runs the claims of this object read.
    """

    def __init__(self) -> None:
        self._offered: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._lows = NO_LOW_WATER
        self._now: Ms = 0
        self._whole_at: Ms = 0
        self._depth_ratio = 1
        self._contended_at: Ms = 0

    def start(self, offer: Offer) -> tuple[Ms, ...]:
        """Return per priority the ready time from which a claim for `offer` reads.

        All are 0 if the last claim offered other lanes or tasks, and once every FULL_SCAN_MS.
        """
        offered = (tuple(offer.lanes), tuple(offer.tasks))
        if offered != self._offered or self._now - self._whole_at >= FULL_SCAN_MS:
            self._offered, self._lows = offered, NO_LOW_WATER
        return self._lows

    def scan_depth(self, limit: int) -> int:
        """Return how many due runs a claim of `limit` runs reads, more than `limit` if others held locks recently."""
        return limit * self._depth_ratio

    def observe_contention(self, now: Ms, contended: bool) -> None:
        """Note whether other claimers held locks on due runs (`contended`) in a claim at `now`.

        If so, the next claims read twice as many runs, up to a bound. After FULL_SCAN_MS without such locks they read
        `limit` runs again.
        """
        if contended:
            self._depth_ratio, self._contended_at = min(2 * self._depth_ratio, _MAX_DEPTH_RATIO), now
        elif self._depth_ratio > 1 and now - self._contended_at >= FULL_SCAN_MS:
            self._depth_ratio = 1

    def observe_claims(self, lows: tuple[Ms, ...], now: Ms, claims: Sequence[Claim], limit: int) -> None:
        """Move the marks after a claim at `now` of up to `limit` runs that began to read at the marks `lows`.

        `claims`: the runs that it claimed, in claim order. If they are fewer than `limit`, there is no backlog, and all
        marks become 0.
        """
        if lows == NO_LOW_WATER:
            self._whole_at = now
        self._now = now
        if len(claims) < limit:
            self._lows = NO_LOW_WATER  # there is no backlog
            return
        first: dict[int, Ms] = {}
        for claim in claims:
            first.setdefault(claim.run.priority, claim.run.ready_at)
        last = claims[-1].run.priority
        self._lows = tuple(
            first[p] if p in first else now - _MAX_CLOCK_LAG_MS if p < last else lows[p] for p in range(PRIORITIES)
        )
