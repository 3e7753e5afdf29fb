"""Outcomes: what became of an attempt, as values. `engine/work/recorder.py` turns most of them into changes.

The module also has `Fail`, `Cancel` and `Snooze`, which a handler raises or returns to ask for these outcomes.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.instant import Duration, Ms, duration_ms


class Succeeded(Struct, frozen=True, gc=False):
    """The handler returned. `result` is the return value as JSON text; None: the handler returned None."""

    result: str | None = None


class Failed(Struct, frozen=True, gc=False):
    """The attempt failed: the handler raised an error or timed out, its process died, or a call of an agent failed."""

    error: str
    #: The kind of failure in one word. It is stored only if no further attempt follows.
    reason: str = "error"
    #: A text that is equal for failures with one cause, to group them by.
    fingerprint: str | None = None
    #: The traceback of the error.
    trace: str | None = None
    #: False: the run is not tried again, even if its retry policy allows it.
    retry: bool = True
    #: The shortest delay before the next attempt, as an HTTP agent asked for it (`Retry-After`). None: no such wish.
    retry_after: Ms | None = None
    #: The answer of an HTTP agent that was no success, as JSON text (`HttpResult`). None: there was no answer.
    answer: str | None = None


class Snoozed(Struct, frozen=True, gc=False):
    """The run is to be tried again after `delay` milliseconds. This is not a failure.

    The handler chose `Snooze`, or the attempt got no thread, no process, or no free slot for the call of an agent.
    """

    delay: Ms


class Cancelled(Struct, frozen=True, gc=False):
    """The attempt was stopped on request, perhaps before its handler began, or its handler chose `Cancel`."""

    reason: str


class HandedBack(Struct, frozen=True, gc=False):
    """The worker gives the run back unfinished, for any worker to claim. `began`: True if the handler had started.

    A run with `recovery="fail"` whose handler had started is not claimed again: it ends as lost. `delay`: milliseconds
    after which the run can be claimed; 0: as before.
    """

    reason: str
    began: bool = False
    delay: Ms = 0


class Skipped(Struct, frozen=True, gc=False):
    """The run ends before its handler begins, for example because it is outside its time window."""

    reason: str


class Accepted(Struct, frozen=True, gc=False):
    """An HTTP agent answered 202: it works on, and reports by callbacks that come at most `silence` milliseconds apart.

    This outcome is not stored, because the run goes on: the agent's callbacks renew the run's lease from now on
    (ADR 14).
    """

    silence: Ms


Outcome = Succeeded | Failed | Snoozed | Cancelled | HandedBack | Skipped | Accepted


class HandlerOutcome(Exception):
    """Base of `Fail`, `Cancel` and `Snooze`: a handler raises or returns one to choose the outcome of its attempt."""


class Fail(HandlerOutcome):
    """A handler raises or returns this to end its run as failed, without another attempt: `raise Fail("no address")`.

    `reason` is stored as the run's error.
    """

    def __init__(self, reason: object = "failed by its handler") -> None:
        super().__init__(reason)
        self.reason = str(reason)


class Cancel(HandlerOutcome):
    """A handler raises or returns this to end its run as cancelled: `raise Cancel("the order is gone")`.

    `reason` is stored with the run.
    """

    def __init__(self, reason: object = "cancelled by its handler") -> None:
        super().__init__(reason)
        self.reason = str(reason)


class Snooze(HandlerOutcome):
    """A handler raises or returns this to be called again after `delay`. This does not count as a failure.

    `delay` is a text such as "10m", a number of seconds, or a timedelta. Raises: InvalidInput for any other value.
    """

    def __init__(self, delay: Duration = "1m") -> None:
        super().__init__(delay)
        self.delay = delay
        self.delay_ms = duration_ms(delay, field="Snooze.delay")
