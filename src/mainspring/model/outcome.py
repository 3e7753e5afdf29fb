"""Outcomes: what became of an attempt, as values. `engine/work/recorder.py` turns most of them into changes.

The module also has `Snooze` and `Cancel`, the values that a handler returns to ask for these outcomes.
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.instant import Duration, Ms


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


class Snoozed(Struct, frozen=True, gc=False):
    """The run is to be tried again after `delay` milliseconds. This is not a failure.

    The handler returned `Snooze`, or the attempt got no thread, no process, or no free slot for the call of an agent.
    """

    delay: Ms


class Cancelled(Struct, frozen=True, gc=False):
    """The attempt was stopped on request, perhaps before its handler began, or the handler returned `Cancel`."""

    reason: str


class HandedBack(Struct, frozen=True, gc=False):
    """The worker gives the run back unfinished, for any worker to claim. `began`: True if the handler had started.

    A run with `recovery="fail"` whose handler had started is not claimed again: it ends as lost.
    """

    reason: str
    began: bool = False


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


class Snooze(Struct, frozen=True):
    """A handler returns this to be called again after `delay`. This does not count as a failure.

    `delay` is a text such as "10m", a number of seconds, or a timedelta.
    """

    delay: Duration = "1m"


class Cancel(Struct, frozen=True, gc=False):
    """A handler returns this to end its run as cancelled."""

    reason: str = "cancelled by its handler"
