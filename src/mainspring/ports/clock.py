"""The clock port: the only place that reads time. All other code is given a `Clock`, or an instant."""

from __future__ import annotations

import time
from typing import Protocol

from mainspring.model.instant import Ms


class Clock(Protocol):
    """Three clocks: wall time for schedules, boot time for leases on one machine, monotonic time for durations."""

    def now(self) -> Ms:
        """Return the wall time, in milliseconds since the epoch, UTC. It may step."""
        ...

    def boot(self) -> Ms:
        """Return the milliseconds since the machine started, suspended time included. It never steps."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary origin, for durations inside one process."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> Ms:
        return time.time_ns() // 1_000_000

    def boot(self) -> Ms:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
