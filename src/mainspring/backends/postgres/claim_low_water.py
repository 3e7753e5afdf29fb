"""Where the claims of a backlog begin to read due runs (low-water marks), and how many due runs they read.

While any transaction holds an old snapshot, the server keeps the index entries of all runs that were claimed since. A
claim that reads from the beginning of the index passes all of them. So the next claim of a backlog begins, in each
priority, at the ready time of the first run that the previous claim took: its *low-water mark*. A run that is inserted
late with an earlier time is claimed when the backlog ends, or within a second.

Other claimers lock the first runs. For a second after a claim found runs locked, claims read more runs behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.instant import Ms
from mainspring.ports.store import Claim, Offer

PRIORITIES = 4
#: After this time at the latest, a claim reads from the beginning again, in milliseconds.
FULL_SCAN_MS = 1_000
#: In a priority without due runs, the ready time of the next new run may lie up to this many milliseconds in the past,
#: if it was set by a process whose clock is behind.
_MAX_CLOCK_LAG_MS = 5_000
#: The largest number of runs that one claim reads for each run that it wants.
_MAX_DEPTH_RATIO = 8
#: The low-water marks with which a claim reads from the beginning.
NO_LOW_WATER: tuple[Ms, ...] = (0,) * PRIORITIES


class ClaimLowWater:
    """The low-water marks of one store object: by priority, the ready time from which the next claim reads due runs.

    It also decides how many due runs the claims of the store object read.
    """

    def __init__(self) -> None:
        self._offered: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._lows = NO_LOW_WATER
        self._now: Ms = 0
        self._whole_at: Ms = 0
        self._depth_ratio = 1
        self._contended_at: Ms = 0

    def start(self, offer: Offer) -> tuple[Ms, ...]:
        """Return for each priority the ready time from which a claim for `offer` reads due runs; 0: from the beginning.

        All are 0 if the last claim was for other lanes or tasks, if it found no backlog, or if FULL_SCAN_MS have passed
        since a claim read from the beginning.
        """
        offered = (tuple(offer.lanes), tuple(offer.tasks))
        if offered != self._offered or self._now - self._whole_at >= FULL_SCAN_MS:
            self._offered, self._lows = offered, NO_LOW_WATER
        return self._lows

    def scan_depth(self, limit: int) -> int:
        """Return how many due runs a claim of up to `limit` runs reads.

        It is `limit`, or a multiple of it if other claimers have lately held locks on due runs.
        """
        return limit * self._depth_ratio

    def observe_contention(self, now: Ms, contended: bool) -> None:
        """Record whether other claimers held locks on due runs (`contended`) during a claim at the instant `now`.

        If they did, the next claims read twice as many runs, up to _MAX_DEPTH_RATIO times their limit. After
        FULL_SCAN_MS without such locks, claims read as many runs as their limit again.
        """
        if contended:
            self._depth_ratio, self._contended_at = min(2 * self._depth_ratio, _MAX_DEPTH_RATIO), now
        elif self._depth_ratio > 1 and now - self._contended_at >= FULL_SCAN_MS:
            self._depth_ratio = 1

    def observe_claims(self, lows: tuple[Ms, ...], now: Ms, claims: Sequence[Claim], limit: int) -> None:
        """Record a claim of up to `limit` runs at `now`, and set the ready times from which the next claim reads.

        `claims`: the runs that the claim took, by priority and time. `lows`: for each priority, the ready time from
        which this claim read. If this claim took fewer than `limit` runs, there is no backlog: the next claim reads
        from the beginning (0).

        Otherwise the next claim reads each priority from the first run that this claim took in it. A priority in which
        this claim took no run is read from `now` minus 5 s if it is more urgent than that of the last run taken. If it
        is less urgent, this claim did not reach it, and it keeps its value in `lows`.
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
