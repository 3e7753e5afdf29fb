"""The clock port: wall, boot and monotonic time.

Code that decides about schedules or leases receives a `Clock`, or an instant. Why: a test or simulation replaces the
clock and decides how time passes.
"""

from __future__ import annotations

import time
from typing import Protocol

from mainspring.model.instant import Ms


class Clock(Protocol):
    """Three clocks: wall time for schedules, boot time for leases on one machine, monotonic time for durations."""

    def now(self) -> Ms:
        """Return the wall time, in milliseconds since 1970 in UTC. It jumps when the system's clock is set."""
        ...

    def boot(self) -> Ms:
        """Return the milliseconds since the machine started, suspended time included. The value never jumps.

        All processes of a machine read the same boot clock, so each can tell which leases in a shared store have ended.
        """
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary origin, for durations inside one process."""
        ...


class SystemClock:
    """The clocks of this machine; the default of every program outside of tests."""

    def now(self) -> Ms:
        return time.time_ns() // 1_000_000

    def boot(self) -> Ms:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
