"""Run context: what a handler can read about its run, and the progress and log lines that it can write."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from mainspring.model.instant import load_zone, to_datetime
from mainspring.ports.executor import HeldRun

log = logging.getLogger("mainspring.run")

Report = Callable[[HeldRun, str], None]


class Context:
    """Facts about a run, passed to a handler whose first parameter is a `Context` or that has a parameter `ctx`."""

    __slots__ = ("_held", "_report", "deps")

    def __init__(self, held: HeldRun, deps: Any = None, report: Report | None = None) -> None:
        """`report` stores a progress line; None: progress is dropped."""
        self._held = held
        self._report = report
        #: The value of `Mainspring(deps=…)`.
        self.deps = deps

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._held.attempt.run.id

    @property
    def idempotency_key(self) -> str:
        """A key that every attempt of this run has in common: pass it on to services that deduplicate by key."""
        return self._held.attempt.run.idempotency_key

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._held.attempt.run.task

    @property
    def schedule_id(self) -> str | None:
        """The id of the run's schedule; None for an enqueued run."""
        return self._held.attempt.run.schedule_id

    @property
    def tz(self) -> ZoneInfo:
        """The time zone of the run's schedule; UTC for an enqueued run."""
        options = self._held.attempt.run.options
        return load_zone(options.tz if options is not None and options.tz else "UTC")

    @property
    def fire_time(self) -> datetime:
        """The planned instant of this run in the zone `tz`; for an enqueued or triggered run, when it was first due."""
        run = self._held.attempt.run
        return to_datetime(run.due_at if run.fire_time is None else run.fire_time, self.tz)

    @property
    def scheduled_at(self) -> datetime:
        """Alias of `fire_time`."""
        return self.fire_time

    @property
    def attempt(self) -> int:
        """Number of claims of this run, 1 in the first attempt; crashes and hand-backs count, too."""
        return self._held.attempt.run.attempt

    @property
    def epoch(self) -> int:
        """Fencing token of this attempt: a resource that has seen a greater one must refuse this."""
        return self._held.attempt.run.epoch

    @property
    def catch_up(self) -> bool:
        """True if this run makes up for a missed fire."""
        return self._held.attempt.run.catch_up

    @property
    def cancelled(self) -> bool:
        """True once the attempt should stop; handlers in threads should test it and return.

        It should stop if the run was cancelled, timed out or lost its lease, or if the instance stops at once.
        """
        return self._held.cancelled.is_set()

    def progress(self, fraction: float, text: str = "") -> None:
        """Store soon how far the run is: a fraction from 0 to 1 and a text, shown while the run runs.

        In a process handler, progress is dropped.
        """
        if self._report is not None:
            self._report(self._held, f"{max(0.0, min(1.0, fraction)):.0%} {text}".strip())

    def log(self, message: str, *args: object) -> None:
        """Log a line to `mainspring.run` at level INFO, with `args` put into it, and the run's id, task and attempt."""
        log.info(message, *args, extra={"run_id": self.run_id, "task": self.task, "attempt": self.attempt})
