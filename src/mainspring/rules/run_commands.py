"""The commands on a run: what a caller or the engine wants to happen to it. `rules/lifecycle.py` decides about them."""

from __future__ import annotations

from msgspec import Struct

from mainspring.model.instant import Ms


class Complete(Struct, frozen=True, gc=False):
    """Command: end the run as succeeded. Its handler began at `began_at`, took `ms` ms and returned `result` (JSON)."""

    began_at: Ms
    ms: int
    result: str | None = None


class Fail(Struct, frozen=True, gc=False):
    """Command: the attempt failed. Try the run again at `retry_at`; None: the run has failed for good, for `reason`.

    `began_at` and `ms`: when the handler began and how long it took; None if it did not begin. `fingerprint` is a short
    text that is equal for failures of one kind. `trace` is the stack trace; `answer` the answer of an agent, as JSON.
    """

    error: str
    began_at: Ms | None = None
    ms: int | None = None
    retry_at: Ms | None = None
    reason: str = "error"
    fingerprint: str | None = None
    trace: str | None = None
    answer: str | None = None


class SnoozeUntil(Struct, frozen=True, gc=False):
    """Command: let the run be claimed again at `until`, without counting a failure."""

    until: Ms


class HandBack(Struct, frozen=True, gc=False):
    """Command: the worker gives the run back without an outcome. `began`: True if the handler had started.

    `ready_at`: when the run may be claimed again; None: as before.
    """

    reason: str
    began: bool = False
    ready_at: Ms | None = None


class Expire(Struct, frozen=True, gc=False):
    """Command: the run's lease ended without an outcome, which counts as a crash.

    With `recovery` "fail" the run ends as lost. With "retry" it can be claimed again, and fails at its crash number
    `max_crashes`. A run whose cancellation was requested ends as cancelled.
    """

    max_crashes: int
    recovery: str


class RequestCancel(Struct, frozen=True, gc=False):
    """Command: cancel the run, or ask its worker to stop it if it is running. `by`: the person or rule behind it."""

    reason: str
    by: str = ""


class StopCancelled(Struct, frozen=True, gc=False):
    """Command: end a running run as cancelled: its worker stopped it on request, or its handler returned `Cancel`."""

    reason: str
    by: str = ""


class Skip(Struct, frozen=True, gc=False):
    """Command: end the run before its handler begins. `by` is the id of another run that is the cause, or None."""

    reason: str
    by: str | None = None


class Reopen(Struct, frozen=True, gc=False):
    """Command: open an ended run again. `body` is the id of its new payload; None: it keeps its payload."""

    by: str = ""
    body: str | None = None


class Discard(Struct, frozen=True, gc=False):
    """Command: dismiss a dead letter. The run stays failed or lost, but is no longer listed as a dead letter."""

    by: str = ""


Command = Complete | Fail | SnoozeUntil | HandBack | Expire | RequestCancel | StopCancelled | Skip | Reopen | Discard
