"""What a handler may know about its run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from mainspring.model.instant import to_datetime, zone
from mainspring.ports.executor import Attempt

log = logging.getLogger("mainspring.run")

Report = Callable[[Attempt, str], None]


class Context:
    """The first parameter of a handler, or one named `ctx`."""

    __slots__ = ("_attempt", "_report", "deps")

    def __init__(self, attempt: Attempt, deps: Any = None, report: Report | None = None) -> None:
        self._attempt = attempt
        self._report = report
        #: Whatever was given to `Mainspring(deps=…)`.
        self.deps = deps

    @property
    def run_id(self) -> str:
        return self._attempt.run.id

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this run."""
        return self._attempt.run.idempotency_key

    @property
    def task(self) -> str:
        return self._attempt.run.task

    @property
    def schedule_id(self) -> str | None:
        return self._attempt.run.schedule_id

    @property
    def tz(self) -> ZoneInfo:
        """The schedule's zone; UTC for ad-hoc work."""
        options = self._attempt.run.options
        return zone(options.tz if options is not None and options.tz else "UTC")

    @property
    def fire_time(self) -> datetime:
        """The instant the schedule owed this run, in its zone; for ad-hoc work, when it was due."""
        run = self._attempt.run
        return to_datetime(run.due_at if run.fire_time is None else run.fire_time, self.tz)

    @property
    def scheduled_at(self) -> datetime:
        """The same as `fire_time`."""
        return self.fire_time

    @property
    def attempt(self) -> int:
        """1 at the first claim; crashes and hand-backs count, so it never goes back."""
        return self._attempt.run.attempt

    @property
    def epoch(self) -> int:
        """The fencing token: a resource that has seen a greater one must refuse this."""
        return self._attempt.run.epoch

    @property
    def catch_up(self) -> bool:
        """True when this run makes up for a missed fire."""
        return self._attempt.run.catch_up

    @property
    def cancelled(self) -> bool:
        """True when the run should stop: cancelled, timed out, or its lease is gone. For handlers in threads."""
        return self._attempt.cancelled.is_set()

    def progress(self, fraction: float, text: str = "") -> None:
        """Show how far the run is; kept with the run while it runs."""
        if self._report is not None:
            self._report(self._attempt, f"{max(0.0, min(1.0, fraction)):.0%} {text}".strip())

    def log(self, message: str, *args: object) -> None:
        """A log line that names the run."""
        log.info(message, *args, extra={"run_id": self.run_id, "task": self.task, "attempt": self.attempt})
