"""How an attempt ended, as a value: user code returns or raises, storing it is someone else's job."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.instant import Duration, Ms


class Succeeded(Struct, frozen=True, gc=False):
    """The handler returned; the result is JSON text."""

    result: str | None = None


class Failed(Struct, frozen=True, gc=False):
    """The handler raised, ran out of time or died."""

    error: str
    reason: str = "error"
    fingerprint: str | None = None
    trace: str | None = None
    retry: bool = True
    retry_after: Ms | None = None  # whoever failed asks for at least this much time


class Snoozed(Struct, frozen=True, gc=False):
    """The handler asks to be called later."""

    delay: Ms


class Cancelled(Struct, frozen=True, gc=False):
    """The handler was stopped on request, or said so itself."""

    reason: str


class HandedBack(Struct, frozen=True, gc=False):
    """The worker gives the run back unfinished."""

    reason: str
    began: bool = False


class Skipped(Struct, frozen=True, gc=False):
    """The run was consumed before its handler began."""

    reason: str


class Accepted(Struct, frozen=True, gc=False):
    """An agent took the work over and will call back; it may stay silent for so long at a time."""

    silence: Ms


Outcome = Succeeded | Failed | Snoozed | Cancelled | HandedBack | Skipped | Accepted


class Snooze(Struct, frozen=True):
    """Returned by a handler: call me again later; it counts as no failure."""

    delay: Duration = "1m"


class Cancel(Struct, frozen=True, gc=False):
    """Returned by a handler: this run is not wanted any more."""

    reason: str = "cancelled by its handler"
