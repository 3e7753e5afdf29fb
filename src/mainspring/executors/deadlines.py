"""Deadlines: the time-outs of many attempts on one event loop, with one timer for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mainspring.model.instant import format_duration
from mainspring.ports.executor import Attempt, HeldRun
from mainspring.telemetry.run_records import LogRun


def log_time_limit(log_run: LogRun, attempt: Attempt, why: str) -> None:
    """Log by `log_run` that an attempt has reached its time limit and goes on, because of `why`, and what follows."""
    overrun = attempt.handler.overrun
    if overrun is None:
        then = "its outcome will count"
    else:
        then = f"if it has not ended {format_duration(overrun)} after the limit, another attempt may begin beside it"
    limit = format_duration(attempt.timeout or 0)
    text = "has run for %s, its time limit; %s, so it keeps running, and %s"
    log_run(logging.WARNING, attempt.run, text, limit, why, then)


class Deadlines:
    """The deadlines of the attempts that run on `loop`. `on_expired` is called with each attempt whose time is up.

    One timer serves all deadlines: nearly every attempt ends before its time-out, so `enter` and `leave` must cost next
    to nothing. Thread: that of `loop`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[HeldRun], None]) -> None:
        self._loop = loop
        self._on_expired = on_expired
        self._until: dict[HeldRun, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, held: HeldRun, seconds: float) -> None:
        """Set the deadline of a run: call `on_expired(held)` after `seconds`, unless `leave` is called before."""
        until = self._until[held] = self._loop.time() + seconds
        if self._timer is None or until < self._timer.when():
            self._arm(until)

    def leave(self, held: HeldRun) -> bool:
        """Remove the deadline of a run. Return False if it had passed: `on_expired` was called for it then."""
        return self._until.pop(held, None) is not None

    def _arm(self, until: float) -> None:
        """Set the timer to the instant `until`, by the event loop's clock. A timer that is set already is cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(until, self._expire_due)

    def _expire_due(self) -> None:
        """Call `on_expired` for each deadline that has passed, and remove it; set the timer to the next deadline.

        The timer calls this.
        """
        self._timer = None
        now = self._loop.time()
        for held in [one for one, until in self._until.items() if until <= now]:
            del self._until[held]
            self._on_expired(held)
        if self._until:
            self._arm(min(self._until.values()))
