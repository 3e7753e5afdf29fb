"""Policies as values: missed fires, overlapping runs, retries, priorities and time windows."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from msgspec import Struct

from mainspring.model.errors import InvalidInput, suggest_nearest
from mainspring.model.http import HttpTarget
from mainspring.model.instant import Duration, Ms, duration_ms

#: What becomes of fires that are later than their grace: no run, one run for all of them, or a run for each.
Missed = Literal["skip", "catch_up_once", "replay_all"]
#: What becomes of a fire while a run of its schedule is open: it is skipped; it waits, unless another run waits (then
#: it is skipped); it waits in any case; it cancels the open runs; or it runs beside them.
Overlap = Literal["forbid", "queue_one", "queue_all", "cancel_running", "allow_parallel"]
#: How the delay grows from one failure to the next.
Backoff = Literal["fixed", "linear", "exponential"]
#: What becomes of a run whose lease ended without an outcome: it is executed again, or it is lost.
Recovery = Literal["retry", "fail"]
#: What becomes of a schedule when the retries of one of its runs are used up.
OnExhausted = Literal["continue", "pause"]
#: What becomes of a new schedule whose name is taken: it replaces the definition, is dropped, or is an error.
OnConflict = Literal["replace", "keep", "error"]
#: What an instance does: plan schedules and execute runs, or only one of them.
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
    """Return the value unchanged if it is one of the allowed words; `field` names it in errors.

    Raises `InvalidInput`, with the nearest allowed word, if it is not.
    """
    if value in allowed:
        return value
    fix = suggest_nearest(value, allowed) if isinstance(value, str) else ""
    raise InvalidInput(field, f"{value!r} is not one of {', '.join(allowed)}", fix)


def parse_priority(value: Priority | str | int) -> Priority:
    """Return the priority that a name, a number or a `Priority` stands for: 'high' and 1 are Priority.HIGH.

    Raises `InvalidInput` for any other value.
    """
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
    """How often and after which delays a failed run is tried again. `rules/retry.py` has the formulas."""

    #: Executions in all, the first one included.
    max_attempts: int = 3
    backoff: Backoff = "exponential"
    #: The delay after the first failure.
    initial: Ms = 1_000
    #: Exponential backoff: the factor from one delay to the next.
    base: float = 2.0
    #: Linear backoff: each delay is longer than the one before by this many times `initial`.
    multiplier: float = 1.0
    #: Exponential backoff: the longest delay, before jitter.
    max_delay: Ms = 60_000
    #: Up to this share of the delay, a random part, is added to it. 0: none; 1: up to the delay itself.
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
    """Check the values of a retry policy and return it; `RetryPolicy` explains each. `Retry(max_attempts=1)`: no retry.

    Raises `InvalidInput`.
    """
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
    """Return the value unchanged if it is a `RetryPolicy` or None.

    Raises `InvalidInput` for any other value. Why: unchecked, the mistake would show only when a run fails.
    """
    if value is None or isinstance(value, RetryPolicy):
        return value
    raise InvalidInput("retry", f"{value!r} is not a retry policy", "Write for example Retry(max_attempts=5)")


class Segment(Struct, frozen=True):
    """A stretch of the day, in seconds since local midnight. The start belongs to it, the end does not."""

    start: int
    end: int


class WindowSpec(Struct, frozen=True, omit_defaults=True):
    """When a run may begin: on which weekdays (0 = Monday) and in which segments of the day, in the zone `tz`.

    No segments: the whole day.
    """

    tz: str = "UTC"
    weekdays: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    segments: tuple[Segment, ...] = ()


class RunOptions(Struct, frozen=True, omit_defaults=True):
    """Options stored with a run. None in a field that the task also has: the task's own setting applies."""

    #: The longest time that one attempt may take.
    timeout: Ms | None = None
    retry: RetryPolicy | None = None
    recovery: Recovery | None = None
    #: The run fails for good when this many of its leases ended without an outcome.
    max_crashes: int | None = None
    #: When the run may begin; outside of it the run is skipped. None: at any time.
    window: WindowSpec | None = None
    #: The run is skipped if it has not begun this long after it was due. None: it never is.
    start_deadline: Ms | None = None
    #: What becomes of the schedule when the run's retries are used up. None: it continues.
    on_exhausted: OnExhausted | None = None
    #: The zone in which the handler is given its fire time. None: UTC.
    tz: str | None = None
    #: The end of this run touches its schedule, which then plans its next fire (fixed delay) or is deleted
    #: (`terminal="delete"`).
    rearm: bool = False
    #: The request of a run of the built-in task `http`.
    http: HttpTarget | None = None
