"""Run context: what a handler can read about its run, and how it stores progress and writes log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from mainspring.model.errors import InvalidInput
from mainspring.model.instant import load_zone, to_datetime
from mainspring.ports.executor import HeldRun, WriteLine
from mainspring.telemetry.run_records import run_fields

log = logging.getLogger("mainspring.run")

Report = Callable[[HeldRun, str], None]
#: Returns the name of a run's schedule; None: the run has none, or the name is not known yet.
ScheduleName = Callable[[HeldRun], str | None]


class Context:
    """Facts about a run, for its handler: `def import_file(ctx: Context, path: str)`.

    A handler receives it as its first parameter if that is annotated as `Context`, else as the parameter `ctx`. `deps`
    is the value of `Mainspring(deps=…)`.
    """

    __slots__ = ("_held", "_report", "_schedule_name", "_write_line", "deps")

    def __init__(
        self,
        held: HeldRun,
        deps: Any = None,
        report: Report | None = None,
        schedule_name: ScheduleName = lambda held: None,
        write_line: WriteLine | None = None,
    ) -> None:
        """`held` is the attempt under way. `report(held, text)` stores a progress line; None: progress is dropped.

        `schedule_name(held)` returns the name of the run's schedule for log lines. `write_line` stores a line in the
        run's log; None: lines are logged only.
        """
        self._held = held
        self._report = report
        self._schedule_name = schedule_name
        self._write_line = write_line
        #: The value of `Mainspring(deps=…)`.
        self.deps = deps

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._held.attempt.run.id

    @property
    def idempotency_key(self) -> str:
        """A key that all attempts of this run have in common: pass it on to services that deduplicate by key."""
        return self._held.attempt.run.idempotency_key

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._held.attempt.run.task

    @property
    def schedule_id(self) -> str | None:
        """The id of the run's schedule; None for a run that was enqueued."""
        return self._held.attempt.run.schedule_id

    @property
    def tz(self) -> ZoneInfo:
        """The time zone of the run's schedule; UTC for a run that was enqueued."""
        options = self._held.attempt.run.options
        return load_zone(options.tz if options is not None and options.tz else "UTC")

    @property
    def fire_time(self) -> datetime:
        """The time for which this run was planned, in the zone `tz`; without a plan, the time when it was first due.

        Runs that were enqueued or triggered have no plan.
        """
        run = self._held.attempt.run
        return to_datetime(run.due_at if run.fire_time is None else run.fire_time, self.tz)

    @property
    def scheduled_at(self) -> datetime:
        """Another name of `fire_time`: the time for which this run was planned."""
        return self.fire_time

    @property
    def attempt(self) -> int:
        """Number of this attempt of the run, from 1. Attempts that crashed or were handed back count, too."""
        return self._held.attempt.run.attempt

    @property
    def epoch(self) -> int:
        """Fencing token of this attempt: a resource that has seen a greater one of this run must refuse its writes."""
        return self._held.attempt.run.epoch

    @property
    def catch_up(self) -> bool:
        """True if this run makes up for a missed fire."""
        return self._held.attempt.run.catch_up

    @property
    def cancelled(self) -> bool:
        """True once the attempt should stop: handlers in threads should test this.

        The reason is that the run was cancelled, reached its time limit or lost its lease, or that the instance stops.
        What the handler then returns counts, so return `Cancel()` or raise an error if the work is not done.
        """
        return self._held.cancelled.is_set()

    def progress(self, fraction: float | str, text: str = "") -> None:
        """Store soon how far the run is, to be shown while it runs: `ctx.progress(0.5, "3 of 6 files")`.

        `fraction` is a number from 0 to 1. A text alone will do: `ctx.progress("half way")`. In a handler that runs in
        a process, progress is dropped. Raises: InvalidInput for a fraction that is neither a number nor a text.
        """
        if isinstance(fraction, str):
            line = f"{fraction} {text}"
        elif isinstance(fraction, int | float) and fraction == fraction:  # not "not a number"
            line = f"{max(0.0, min(1.0, fraction)):.0%} {text}"
        else:
            raise InvalidInput("fraction", f"{fraction!r} is not a share of the work", "Use a number from 0 to 1")
        if self._report is not None:
            self._report(self._held, line.strip())

    def log(self, message: str, *args: object) -> None:
        """Log a line and store it in the run's log, which `ms.logs(run_id)` returns: `ctx.log("%d rows", n)`.

        The line is stored within a second. It also goes to the logger "mainspring.run" at level INFO; the record's
        attributes `schedule` (the name), `schedule_id`, `task`, `run_id` and `attempt` state which run wrote it.
        """
        log.info(message, *args, extra=run_fields(self._held.attempt.run, self._schedule_name(self._held)))
        if self._write_line is not None:
            self._write_line(self._held, "info", "log", _format(message, args))


def _format(message: str, args: tuple[object, ...]) -> str:
    """Return the text of a line. If the arguments do not fit, they follow the message: a line must not fail a run."""
    try:
        return str(message) % args if args else str(message)
    except Exception:
        return f"{message} {args!r}"
