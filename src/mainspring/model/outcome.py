"""Outcomes: how an attempt ended, as a value. Executors make outcomes; the recorder turns them into changes."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.instant import Duration, Ms


class Succeeded(Struct, frozen=True, gc=False):
    """The handler returned. `result` is its return value as JSON text; None: it returned None."""

    result: str | None = None


class Failed(Struct, frozen=True, gc=False):
    """The attempt failed: the handler raised an error or ran out of time, its process died, or a call was refused."""

    error: str
    #: The kind of failure in one word, stored if no attempt follows.
    reason: str = "error"
    #: A text that is equal for failures with one cause, to group them by.
    fingerprint: str | None = None
    #: The traceback.
    trace: str | None = None
    #: False: no further attempt, whatever the retry policy allows.
    retry: bool = True
    #: The shortest delay before the next attempt that the failure itself asked for, as an HTTP agent can.
    retry_after: Ms | None = None


class Snoozed(Struct, frozen=True, gc=False):
    """The handler asked to be called again after `delay` milliseconds."""

    delay: Ms


class Cancelled(Struct, frozen=True, gc=False):
    """The handler was stopped on request, or returned `Cancel`."""

    reason: str


class HandedBack(Struct, frozen=True, gc=False):
    """The worker gives the run back unfinished, for any worker to claim. `began`: True if the handler had started."""

    reason: str
    began: bool = False


class Skipped(Struct, frozen=True, gc=False):
    """The run ends without its handler having started."""

    reason: str


class Accepted(Struct, frozen=True, gc=False):
    """An HTTP agent answered 202: its work goes on, and it reports by callbacks at most `silence` milliseconds apart.

    The run stays open, so nothing is stored: the agent's callbacks renew the lease from now on (ADR 14).
    """

    silence: Ms


Outcome = Succeeded | Failed | Snoozed | Cancelled | HandedBack | Skipped | Accepted


class Snooze(Struct, frozen=True):
    """A handler returns this to be called again after `delay`, which does not count as a failure.

    `delay` is a text such as "10m", a number of seconds, or a timedelta.
    """

    delay: Duration = "1m"


class Cancel(Struct, frozen=True, gc=False):
    """A handler returns this to end its run as cancelled."""

    reason: str = "cancelled by its handler"
