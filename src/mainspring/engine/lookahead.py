"""How far the planner looks ahead: not at all, unless there is so much to plan that it pays.

A fire that is planned a moment before its time waits in the store as a run, and any worker may take it when its time
has come. Many fires then share a look and a commit, and none is late because of them.
"""

from __future__ import annotations

from mainspring.model.instant import Ms
from mainspring.ports.clock import Clock

#: From so many fires a second on.
BUSY = 20.0
#: So many milliseconds ahead. Who pauses or edits a schedule in this time comes too late for that one fire.
AHEAD: Ms = 500
#: How much of that passes before the next look, in percent: the rest is for one that is late.
STEP = 80
#: Seconds over which fires are counted.
COUNTED = 0.3


class Lookahead:
    """Counts the fires planned here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._count = 0
        self.ms: Ms = 0

    def counted(self, count: int) -> None:
        """So many came by this look. A rush is seen at once, its end after a while."""
        self._count += count
        seconds = self._clock.monotonic() - self._since
        if seconds >= COUNTED or self._count >= BUSY * COUNTED:
            self.ms = AHEAD if self._count >= BUSY * seconds else 0
            self._since, self._count = self._since + seconds, 0

    def look_at(self, now: Ms, matters: Ms) -> Ms:
        """When to look for what will matter then: that long before, in steps of 400 ms, and never too late."""
        return min(matters, max(matters - self.ms, now + self.ms * STEP // 100))
