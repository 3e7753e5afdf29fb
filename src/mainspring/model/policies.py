"""Policies as values: missed fires, overlapping runs, retries, priorities and time windows."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from msgspec import Struct

from mainspring.model.errors import InvalidInput, suggest_nearest
from mainspring.model.http import HttpTarget
from mainspring.model.instant import Duration, Ms, duration_ms

Missed = Literal["skip", "catch_up_once", "replay_all"]
Overlap = Literal["forbid", "queue_one", "queue_all", "cancel_running", "allow_parallel"]
Backoff = Literal["fixed", "linear", "exponential"]
Recovery = Literal["retry", "fail"]
OnExhausted = Literal["continue", "pause"]
OnConflict = Literal["replace", "keep", "error"]
Role = Literal["all", "planner", "worker"]
PriorityName = Literal["critical", "high", "normal", "low"]

MISSED: tuple[Missed, ...] = ("skip", "catch_up_once", "replay_all")
OVERLAP: tuple[Overlap, ...] = ("forbid", "queue_one", "queue_all", "cancel_running", "allow_parallel")
BACKOFF: tuple[Backoff, ...] = ("fixed", "linear", "exponential")
RECOVERY: tuple[Recovery, ...] = ("retry", "fail")
ON_EXHAUSTED: tuple[OnExhausted, ...] = ("continue", "pause")
ON_CONFLICT: tuple[OnConflict, ...] = ("replace", "keep", "error")
ROLES: tuple[Role, ...] = ("all", "planner", "worker")


class Priority(IntEnum):
    """The order in which due runs are claimed: a lower number first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


def check_choice(value: str, allowed: tuple[str, ...], *, field: str) -> str:
    """Return the value if it is one of the allowed words.

    Raises `InvalidInput`, with the nearest allowed word, if it is not.
    """
    if value in allowed:
        return value
    fix = suggest_nearest(value, allowed) if isinstance(value, str) else ""
    raise InvalidInput(field, f"{value!r} is not one of {', '.join(allowed)}", fix)


def parse_priority(value: Priority | str | int) -> Priority:
    """Return the priority for a name, a number or a `Priority`: 'high' and 1 are Priority.HIGH."""
    if isinstance(value, str):
        names = tuple(p.name.lower() for p in Priority)
        return Priority[check_choice(value.lower(), names, field="priority").upper()]
    try:
        return Priority(value)
    except ValueError:
        raise InvalidInput(
            "priority", f"{value!r} is not a priority", "Use critical, high, normal or low (0 to 3)"
        ) from None


class RetryPolicy(Struct, frozen=True, omit_defaults=True):
    """How often and after which delays a failed run is tried again. `max_attempts` counts the first execution, too."""

    max_attempts: int = 3
    backoff: Backoff = "exponential"
    initial: Ms = 1_000
    base: float = 2.0
    multiplier: float = 1.0
    max_delay: Ms = 60_000
    jitter: float = 0.5


def Retry(  # noqa: N802 - it reads as the value it makes
    max_attempts: int = 3,
    backoff: Backoff = "exponential",
    initial: Duration = "1s",
    base: float = 2.0,
    multiplier: float = 1.0,
    max_delay: Duration = "60s",
    jitter: float = 0.5,
) -> RetryPolicy:
    """Return a checked `RetryPolicy`. `rules/retry.py` has the formulas of the delays."""
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or max_attempts < 1:
        raise InvalidInput(
            "retry.max_attempts", f"{max_attempts!r} is not a whole number of at least 1", "1 means no retry"
        )
    check_choice(backoff, BACKOFF, field="retry.backoff")
    if not 0 <= jitter <= 1:
        raise InvalidInput("retry.jitter", f"{jitter!r} is out of range", "Use a number from 0 to 1")
    if not 1 <= base <= 1000:
        raise InvalidInput("retry.base", f"{base!r} is out of range", "Use a number from 1 to 1000")
    if not 0 <= multiplier <= 1_000_000:
        raise InvalidInput("retry.multiplier", f"{multiplier!r} is out of range", "Use a number of at least 0")
    return RetryPolicy(
        max_attempts=max_attempts,
        backoff=backoff,
        initial=duration_ms(initial, field="retry.initial"),
        base=float(base),
        multiplier=float(multiplier),
        max_delay=duration_ms(max_delay, field="retry.max_delay"),
        jitter=float(jitter),
    )


def check_retry(value: RetryPolicy | None) -> RetryPolicy | None:
    """Return the policy if it is one, or None.

    Raises `InvalidInput` otherwise: unchecked, the mistake would show only when a run fails.
    """
    if value is None or isinstance(value, RetryPolicy):
        return value
    raise InvalidInput("retry", f"{value!r} is not a retry policy", "Write for example Retry(max_attempts=5)")


class Segment(Struct, frozen=True):
    """A stretch of the day, in seconds since local midnight. The start belongs to it, the end does not."""

    start: int
    end: int


class WindowSpec(Struct, frozen=True, omit_defaults=True):
    """When a run may begin: a zone, weekdays (0 = Monday) and segments of the day. No segments: the whole day."""

    tz: str = "UTC"
    weekdays: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    segments: tuple[Segment, ...] = ()


class RunOptions(Struct, frozen=True, omit_defaults=True):
    """Options stored with a run. A field is set only if it differs from the task's own settings."""

    timeout: Ms | None = None
    retry: RetryPolicy | None = None
    recovery: Recovery | None = None
    max_crashes: int | None = None
    window: WindowSpec | None = None
    start_deadline: Ms | None = None
    on_exhausted: OnExhausted | None = None
    tz: str | None = None
    #: The schedule computes its next fire from the end of this run (fixed delay).
    rearm: bool = False
    #: The request of a run of the built-in task `http`.
    http: HttpTarget | None = None
