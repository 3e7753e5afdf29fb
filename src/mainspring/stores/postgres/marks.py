"""Where a claim begins to look, so that it need not pass again what was claimed before; and how far.

While somebody holds an old snapshot, the server keeps the index entries of every run that was claimed since, and a
claim from the beginning reads all of them. So the next claim of a backlog begins where the last one began to find. What
comes late with an earlier time is found when the backlog ends, or within a second.

Who claims at the same time has a hand on the first runs: for a second after that was so, a claim looks behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.model.instant import Ms
from mainspring.ports.store import Claim, Offer

PRIORITIES = 4
#: So often a claim looks from the beginning, in milliseconds.
_WHOLE = 1_000
#: Where a priority was empty, its next run may have been given its time this long ago, by a clock that is behind.
_BEHIND = 5_000
#: At most so many times as many as are wanted, in one look.
_FARTHEST = 8
BEGINNING: tuple[Ms, ...] = (0,) * PRIORITIES


class Marks:
    """Of one store object: for each priority, before which time there was nothing to claim."""

    def __init__(self) -> None:
        self._of: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._lows = BEGINNING
        self._now: Ms = 0
        self._whole_at: Ms = 0
        self._times = 1
        self._met_at: Ms = 0

    def begin(self, offer: Offer) -> tuple[Ms, ...]:
        """For each priority, from which time on to look."""
        of = (tuple(offer.lanes), tuple(offer.tasks))
        if of != self._of or self._now - self._whole_at >= _WHOLE:
            self._of, self._lows = of, BEGINNING
        return self._lows

    def depth(self, limit: int) -> int:
        """How many runs to look at for so many."""
        return limit * self._times

    def met(self, now: Ms, others: bool) -> None:
        """Whether others had a hand on what could have been claimed."""
        if others:
            self._times, self._met_at = min(2 * self._times, _FARTHEST), now
        elif self._times > 1 and now - self._met_at >= _WHOLE:
            self._times = 1

    def seen(self, lows: tuple[Ms, ...], now: Ms, claims: Sequence[Claim], limit: int) -> None:
        """What a claim that began there found, in its order."""
        if lows == BEGINNING:
            self._whole_at = now
        self._now = now
        if len(claims) < limit:
            self._lows = BEGINNING  # not a backlog, or not any more
            return
        first: dict[int, Ms] = {}
        for claim in claims:
            first.setdefault(claim.run.priority, claim.run.ready_at)
        last = claims[-1].run.priority
        self._lows = tuple(
            first[p] if p in first else now - _BEHIND if p < last else lows[p] for p in range(PRIORITIES)
        )
