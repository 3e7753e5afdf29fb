"""Outcomes of attempts, made from what a handler returned or raised, or from its time-out."""

from __future__ import annotations

import hashlib
import os
import traceback
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from mainspring.model.errors import MainspringError
from mainspring.model.ids import storable_text
from mainspring.model.outcome import (
    Accepted,
    Cancel,
    Cancelled,
    Failed,
    HandlerOutcome,
    Outcome,
    Snooze,
    Snoozed,
    Succeeded,
)
from mainspring.model.policies import RetryFilter
from mainspring.ports.clock import Clock
from mainspring.ports.executor import MAX_ERROR_CHARS, Attempt, Execution, HeldRun
from mainspring.rules.retry import is_worth_retry

#: Characters stored of a traceback.
MAX_TRACE_CHARS = 8_000
#: How the paths of Mainspring's own files begin.
_OWN_FILES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def record_begin(execution: Execution, clock: Clock) -> None:
    """Record in `execution` that the handler begins now."""
    execution.started = clock.monotonic()  # set before `began_at`, which other threads test
    execution.began_at = clock.now()


def record_end(execution: Execution, clock: Clock) -> None:
    """Record in `execution` that the handler has ended now: how long it took."""
    execution.ms = round((clock.monotonic() - execution.started) * 1000)


def value_outcome(attempt: Attempt, value: Any) -> Outcome:
    """Return the outcome of a handler that returned `value`: success, or what a `Fail`, `Cancel` or `Snooze` asks for.

    A value that is an outcome already, as from the client of HTTP agents, is returned unchanged. A coroutine, which
    was never awaited, makes a failure without a retry.
    """
    if value is None:
        return Succeeded()
    if isinstance(value, HandlerOutcome):
        return _chosen_outcome(value)
    if isinstance(value, type) and issubclass(value, HandlerOutcome):  # `return Cancel`, which `raise Cancel` allows
        return _chosen_outcome(value())
    if isinstance(value, Succeeded | Failed | Snoozed | Accepted):  # the client of HTTP agents returns outcomes
        return value
    try:
        return Succeeded(attempt.handler.encode(value))
    except MainspringError as error:
        return Failed(str(error), reason="result", fingerprint="result", retry=False)


def _chosen_outcome(chosen: HandlerOutcome) -> Outcome:
    """Return the outcome that a handler asks for by raising or returning a `Fail`, `Cancel` or `Snooze`."""
    match chosen:
        case Snooze():
            return Snoozed(chosen.delay_ms)
        case Cancel():
            return Cancelled(storable_text(chosen.reason))
    failed = replace(_failure(chosen, None), error=_cut(storable_text(str(chosen)), MAX_ERROR_CHARS))
    # The handler meant to fail, so the place where it did tells nothing. An error behind it does.
    return failed if chosen.__cause__ or chosen.__context__ else replace(failed, trace=None)


def error_outcome(error: BaseException, attempt: Attempt | None = None) -> Outcome:
    """Return the outcome of a handler that raised `error`: a failure, or what a `Fail`, `Cancel` or `Snooze` asks for.

    The task of `attempt` states after which errors the run is tried again; None: after every error but `Fail`.
    """
    if isinstance(error, HandlerOutcome):
        return _chosen_outcome(error)
    return _failure(error, None if attempt is None else attempt.handler.retry_filter)


def _failure(error: BaseException, retry_filter: RetryFilter | None) -> Failed:
    """Return the failure of a handler that raised `error`, which `retry_filter` allows to be tried again or not.

    Errors of one type from one line of code have one fingerprint. Error text and traceback are cut to `MAX_ERROR_CHARS`
    and `MAX_TRACE_CHARS`, plus a note "N characters left out" in their middle.
    """
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = storable_text(str(error))
    except Exception:  # an error whose own `__str__` fails
        text = "(its text cannot be read)"
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].name}:{frames[-1].line}" if frames else ""
    fingerprint = hashlib.blake2b(f"{name}:{where}".encode(), digest_size=6).hexdigest()
    try:
        trace = storable_text("".join(traceback.format_exception(kind, error, _handler_part(error.__traceback__))))
    except Exception:
        trace = ""
    return Failed(
        error=_cut(f"{name}: {text}" if text else name, MAX_ERROR_CHARS),
        fingerprint=fingerprint,
        trace=_cut(trace, MAX_TRACE_CHARS),
        retry=is_worth_retry(error, retry_filter),
    )


def _handler_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame that is not Mainspring's own; all of it if every frame is."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        part = part.tb_next
    return part or trace


def raised_outcome(held: HeldRun, error: BaseException) -> Outcome:
    """Return the outcome of a handler that raised `error`, perhaps because it was asked to stop."""
    return stopped_outcome(held, error_outcome(error, held.attempt))


def stopped_outcome(held: HeldRun, own: Outcome) -> Outcome:
    """Return the outcome of a handler that ended with the outcome `own`, perhaps because it was asked to stop.

    A failure then means that it did stop. Any other outcome is what became of the attempt, and counts.
    """
    return own if held.stop is None or not isinstance(own, Failed) else held.stop


def timeout_outcome(attempt: Attempt, *, abandoned: bool = False) -> Failed:
    """Return the outcome of a handler that took longer than its time-out.

    `abandoned`: the handler did not stop, still ran after its overrun (`handler.overrun`), and is not waited for any
    more.
    """
    seconds = (attempt.timeout or 0) / 1000
    retry = is_worth_retry(TimeoutError(), attempt.handler.retry_filter)
    if not abandoned:
        return Failed(f"timed out after {seconds:g} s", reason="timeout", fingerprint="timeout", retry=retry)
    overrun = (attempt.handler.overrun or 0) / 1000
    text = f"timed out after {seconds:g} s, did not stop within {overrun:g} s and was abandoned"
    return Failed(text, reason="timeout", fingerprint="timeout:abandoned", retry=retry)


def _cut(text: str, limit: int) -> str:
    """Return the text. If it is longer than `limit`, a note of how many characters are left out replaces its middle."""
    if len(text) <= limit:
        return text
    return text[: limit // 2] + f"\n… {len(text) - limit} characters left out …\n" + text[-limit // 2 :]
