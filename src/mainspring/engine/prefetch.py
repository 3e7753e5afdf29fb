"""How far a worker claims ahead of its free slots."""

from __future__ import annotations

from mainspring.ports.clock import Clock

#: The weight of the newest measurement.
NEWEST = 0.3
#: A rate is measured over so many seconds, or so many runs: claims may come a millisecond apart, ends by the handful.
LONG, MANY = 0.15, 50
#: So many at most, or as many as there are slots: what is quick enough to need more is waited for no longer than the
#: round trips that it spares.
MOST = 100
#: So many paces of the store, so that quick runs come and go by the dozen: those that hold a slot for four at most.
#: What waits here stands before whatever is more urgent and comes later, so slower ones get two.
PACES, QUICK, SLOW = 10, 4, 2


class Prefetch:
    """What ends during two round trips to the store, or in some of its paces."""

    def __init__(self, clock: Clock, pace: float = 0.0) -> None:
        self._clock = clock
        self._pace = pace
        self._since = clock.monotonic()
        self._finished = 0
        self._rate = 0.0
        self._round_trip = 0.0

    def finished(self, count: int) -> None:
        """So many runs ended."""
        self._finished += count

    def answered(self, began: float) -> None:
        """The store answered a claim that was sent at `began`, in monotonic seconds."""
        now = self._clock.monotonic()
        self._round_trip += NEWEST * (now - began - self._round_trip)
        seconds = now - self._since
        if seconds >= LONG or (self._finished >= MANY and seconds > 0):
            rate = self._finished / seconds
            self._rate += (NEWEST if self._rate else 1.0) * (rate - self._rate)  # the first is all there is
            self._since, self._finished = now, 0

    @property
    def knows(self) -> bool:
        """True when it has been measured how quickly runs end here."""
        return self._rate > 0

    def during(self, seconds: float) -> int:
        """What ends in so many seconds."""
        return int(self._rate * seconds)

    def places(self, slots: int) -> int:
        """Places in the local queue."""
        paces = PACES if slots <= self._rate * self._pace * QUICK else SLOW
        seconds = max(2 * self._round_trip, self._pace * paces)
        return min(max(slots, MOST), int(self._rate * seconds))
