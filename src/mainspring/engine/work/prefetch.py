"""Prefetch: how many runs a worker claims beyond its free slots, so that no slot is idle while a claim is under way."""

from __future__ import annotations

from mainspring.ports.clock import Clock

#: The weight of the newest measurement in a moving average.
NEWEST_WEIGHT = 0.3
#: Measure the rate of ended runs over 0.15 seconds or 50 runs. A shorter time would tell little: claims may come a
#: millisecond apart, and runs end in bursts.
RATE_SECONDS, RATE_RUNS = 0.15, 50
#: The most runs in the local queue; the number of slots, if that is higher. Runs too short for 100 to be enough are
#: limited by the store's round trip anyway.
MAX_PREFETCHED = 100
#: A pace is the flush interval of outcomes. If a run holds its slot for at most 4 paces, prefetch the runs of 10 paces,
#: else of 2: a prefetched slow run would delay a more urgent run that arrives later.
QUICK_RUN_PACES = 4
PACES_OF_QUICK_RUNS, PACES_OF_SLOW_RUNS = 10, 2


class Prefetch:
    """Measures how many runs end per second and how long a claim takes, for `queue_size`. Thread: engine loop."""

    def __init__(self, clock: Clock, pace: float = 0.0) -> None:
        """Begin to measure. `pace`: the flush interval in seconds, the least time between two commits of outcomes."""
        self._clock = clock
        self._pace = pace
        self._since = clock.monotonic()
        self._finished = 0
        self._rate = 0.0
        self._round_trip = 0.0

    def finished(self, count: int) -> None:
        """Count `count` more runs as ended."""
        self._finished += count

    def answered(self, began: float) -> None:
        """Measure the round trip of a claim that was answered now. `began`: when it was sent, in monotonic seconds.

        Also update the rate of ended runs, if enough time has passed or enough runs have ended.
        """
        now = self._clock.monotonic()
        self._round_trip += NEWEST_WEIGHT * (now - began - self._round_trip)
        seconds = now - self._since
        if seconds >= RATE_SECONDS or (self._finished >= RATE_RUNS and seconds > 0):
            rate = self._finished / seconds
            self._rate += (NEWEST_WEIGHT if self._rate else 1.0) * (rate - self._rate)  # the first rate counts in full
            self._since, self._finished = now, 0

    @property
    def is_measured(self) -> bool:
        """True once the rate at which runs end here is known."""
        return self._rate > 0

    def expected_ends(self, seconds: float) -> int:
        """Return how many runs will end here within `seconds`, by the measured rate."""
        return int(self._rate * seconds)

    def queue_size(self, slots: int) -> int:
        """Return how many claimed runs should wait for a slot in a worker with `slots` slots: its local queue."""
        is_quick = slots <= self._rate * self._pace * QUICK_RUN_PACES
        paces = PACES_OF_QUICK_RUNS if is_quick else PACES_OF_SLOW_RUNS
        seconds = max(2 * self._round_trip, self._pace * paces)
        return min(max(slots, MAX_PREFETCHED), int(self._rate * seconds))
