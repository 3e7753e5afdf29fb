"""Outcomes: how an attempt ended, as a value. Executors make outcomes; the recorder stores them."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.instant import Duration, Ms


class Succeeded(Struct, frozen=True, gc=False):
    """The handler returned. `result` is its return value as JSON text."""

    result: str | None = None


class Failed(Struct, frozen=True, gc=False):
    """The handler raised, ran out of time, or its process died."""

    error: str
    reason: str = "error"
    fingerprint: str | None = None
    trace: str | None = None
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
    """The worker gives the run back unfinished, for any worker to claim. `began`: the handler had started."""

    reason: str
    began: bool = False


class Skipped(Struct, frozen=True, gc=False):
    """The run ends without its handler having started."""

    reason: str


class Accepted(Struct, frozen=True, gc=False):
    """An HTTP agent answered 202: it works on, and reports by callbacks at most `silence` milliseconds apart."""

    silence: Ms


Outcome = Succeeded | Failed | Snoozed | Cancelled | HandedBack | Skipped | Accepted


class Snooze(Struct, frozen=True):
    """Return this from a handler to be called again after `delay`. Not a failure."""

    delay: Duration = "1m"


class Cancel(Struct, frozen=True, gc=False):
    """Return this from a handler to end the run as cancelled."""

    reason: str = "cancelled by its handler"
