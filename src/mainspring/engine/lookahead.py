"""Lookahead: how far ahead of their time schedules are planned and runs are claimed (ADR 15).

Nothing is done ahead unless fires are frequent. A fire that is planned ahead waits in the store as a run that any
worker may take at its time. Thus several fires share one query and one commit, and no fire is late because of another.
"""

from __future__ import annotations

from mainspring.model.instant import Ms
from mainspring.ports.clock import Clock

#: Plan ahead from this many fires per second on.
BUSY_FIRES_PER_SECOND = 20.0
#: Plan this many milliseconds ahead. A pause or an edit of a schedule within that time comes too late for one fire.
PLAN_AHEAD_MS: Ms = 500
#: Percentage of `PLAN_AHEAD_MS` between two queries ahead of time. The remaining 20 % cover a query that is late.
QUERY_INTERVAL_PERCENT = 80
#: Seconds over which fires are counted.
RATE_WINDOW_SECONDS = 0.3


class Lookahead:
    """Measures the rate of fires and decides how far ahead of their time to plan or claim. Thread: engine loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._count = 0
        #: How far to plan or claim ahead now, in milliseconds: 0 or `PLAN_AHEAD_MS`.
        self.ms: Ms = 0

    def count(self, count: int) -> None:
        """Add `count`, the number of fires or runs that one query found, and set `ms` by their rate.

        After a rise of the rate, `ms` is set as soon as the fires of a busy window are counted; after a fall, at the
        end of a window of `RATE_WINDOW_SECONDS`.
        """
        self._count += count
        seconds = self._clock.monotonic() - self._since
        if seconds >= RATE_WINDOW_SECONDS or self._count >= BUSY_FIRES_PER_SECOND * RATE_WINDOW_SECONDS:
            self.ms = PLAN_AHEAD_MS if self._count >= BUSY_FIRES_PER_SECOND * seconds else 0
            self._since, self._count = self._since + seconds, 0

    def next_query_at(self, now: Ms, next_at: Ms) -> Ms:
        """Return when to query the store for the next fire: up to `ms` before its time `next_at`, never after it.

        `now`: the store time of the present query. At least 80 % of `ms` lie between two queries ahead of time, so that
        one query finds many fires.
        """
        return min(next_at, max(next_at - self.ms, now + self.ms * QUERY_INTERVAL_PERCENT // 100))
