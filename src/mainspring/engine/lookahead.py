"""Lookahead: how far ahead of their time schedules are planned and runs are claimed (ADR 15).

Nothing is done ahead unless fires are frequent. A fire planned ahead waits in the store as a run that any worker may
take at its time; thus many fires share one look and one commit, and none is late because of the others.
"""

from __future__ import annotations

from mainspring.model.instant import Ms
from mainspring.ports.clock import Clock

#: Plan ahead from this many fires per second on.
BUSY_FIRES_PER_SECOND = 20.0
#: Plan this many milliseconds ahead. To pause or edit a schedule within that time comes too late for one fire.
PLAN_AHEAD: Ms = 500
#: Percentage of `PLAN_AHEAD` after which to look again; the rest covers a look that is late.
LOOK_INTERVAL_PERCENT = 80
#: Seconds over which fires are counted.
RATE_WINDOW_SECONDS = 0.3


class Lookahead:
    """Measures the rate of fires and says how far to look ahead. Thread: engine loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._count = 0
        #: How far to look ahead now: 0 or `PLAN_AHEAD`.
        self.ms: Ms = 0

    def count(self, count: int) -> None:
        """Add the number of fires or runs that one query found, and set `ms` by their rate.

        A rush is noticed at once, its end after the rate window.
        """
        self._count += count
        seconds = self._clock.monotonic() - self._since
        if seconds >= RATE_WINDOW_SECONDS or self._count >= BUSY_FIRES_PER_SECOND * RATE_WINDOW_SECONDS:
            self.ms = PLAN_AHEAD if self._count >= BUSY_FIRES_PER_SECOND * seconds else 0
            self._since, self._count = self._since + seconds, 0

    def look_at(self, now: Ms, next_at: Ms) -> Ms:
        """Return when to query the store for the fire at `next_at`: up to `ms` ahead of it, never after it.

        `now` is the time of the present query. At least 80 % of `ms` lie between two queries ahead of time, so that one
        query finds many fires.
        """
        return min(next_at, max(next_at - self.ms, now + self.ms * LOOK_INTERVAL_PERCENT // 100))
