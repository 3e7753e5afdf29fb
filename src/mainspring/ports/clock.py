"""The only place that reads time. Everything else is given a `Clock`, or an instant."""

from __future__ import annotations

import time
from typing import Protocol

from mainspring.model.instant import Ms


class Clock(Protocol):
    """Wall time for schedules, boot time for leases on one machine, monotonic time for durations."""

    def now(self) -> Ms:
        """Milliseconds since the epoch, UTC; may step."""
        ...

    def boot(self) -> Ms:
        """Milliseconds since the machine started, suspended time included; never steps."""
        ...

    def monotonic(self) -> float:
        """Seconds for measuring durations inside one process."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Ms:
        return time.time_ns() // 1_000_000

    def boot(self) -> Ms:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
