"""What a handler returned or raised, as an outcome."""

from __future__ import annotations

import hashlib
import traceback
from typing import Any

from mainspring.model.errors import MainspringError
from mainspring.model.ids import plain
from mainspring.model.instant import duration_ms
from mainspring.model.outcome import Accepted, Cancel, Cancelled, Failed, Outcome, Snooze, Snoozed, Succeeded
from mainspring.ports.clock import Clock
from mainspring.ports.executor import Attempt

MAX_ERROR = 2_000
MAX_TRACE = 8_000


def begin(attempt: Attempt, clock: Clock) -> None:
    """Note when the handler began."""
    attempt.started = clock.monotonic()  # first: who sees on another thread that it began may rely on it
    attempt.began_at = clock.now()


def end(attempt: Attempt, clock: Clock) -> None:
    """Note how long the handler took."""
    attempt.ms = round((clock.monotonic() - attempt.started) * 1000)


def returned(attempt: Attempt, value: Any) -> Outcome:
    """A value, or one of the two answers that mean something to us."""
    if value is None:
        return Succeeded()
    if isinstance(value, Snooze):
        return Snoozed(duration_ms(value.delay, field="Snooze.delay"))
    if isinstance(value, Cancel):
        return Cancelled(plain(str(value.reason)))
    if isinstance(value, Succeeded | Failed | Snoozed | Accepted):  # the client of HTTP agents judges by itself
        return value
    try:
        return Succeeded(attempt.handler.encode(value))
    except MainspringError as error:
        return Failed(str(error), reason="result", fingerprint="result", retry=False)


def raised(error: BaseException) -> Failed:
    """An exception, with a fingerprint that groups the like: its type and the innermost line of user code."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = plain(str(error))
    except Exception:  # an error that cannot even say what it is
        text = "(its text cannot be read)"
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].name}:{frames[-1].line}" if frames else ""
    fingerprint = hashlib.blake2b(f"{name}:{where}".encode(), digest_size=6).hexdigest()
    try:
        trace = plain("".join(traceback.format_exception(error)))
    except Exception:
        trace = ""
    return Failed(
        error=_cut(f"{name}: {text}" if text else name, MAX_ERROR),
        fingerprint=fingerprint,
        trace=_cut(trace, MAX_TRACE),
    )


def timed_out(attempt: Attempt, *, abandoned: bool = False) -> Failed:
    """The handler took longer than it may."""
    seconds = (attempt.timeout or 0) / 1000
    if not abandoned:
        return Failed(f"timed out after {seconds:g} s", reason="timeout", fingerprint="timeout")
    text = f"timed out after {seconds:g} s, did not stop within {attempt.handler.overrun / 1000:g} s and was abandoned"
    return Failed(text, reason="timeout", fingerprint="timeout:abandoned")


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return text[: limit // 2] + f"\n… {len(text) - limit} characters left out …\n" + text[-limit // 2 :]
