"""Policies as values: missed fires, overlapping runs, retries, priorities and time windows."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Literal

from msgspec import Struct

from mainspring.model.errors import InvalidInput, suggest_nearest
from mainspring.model.http import HttpTarget
from mainspring.model.instant import Duration, Ms, duration_ms
from mainspring.model.option_hints import refuse_unknown_options

#: What becomes of missed fires: no run, one run for all of them, or one run for each.
Missed = Literal["skip", "catch_up_once", "replay_all"]
#: What becomes of a fire while a run of its schedule is open, in the order of the words: the fire is skipped; its run
#: waits, but the fire is skipped if another run waits already; its run waits; its run replaces the open runs, which are
#: cancelled; its run executes alongside the open runs.
Overlap = Literal["forbid", "queue_one", "queue_all", "cancel_running", "allow_parallel"]
#: How the delay before a retry grows from one failure of the run to the next.
Backoff = Literal["fixed", "linear", "exponential"]
#: What becomes of a run whose lease ended without an outcome: it is executed again, or it is lost.
Recovery = Literal["retry", "fail"]
#: What becomes of a schedule when the retries of one of its runs are used up.
OnExhausted = Literal["continue", "pause"]
#: What becomes of a new schedule whose name is taken: it replaces the existing definition; the existing schedule stays
#: as it is; it is refused with an error.
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
    """The priority of a run: of the due runs, a run with a lower number is claimed first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


def check_choice(value: str, allowed: tuple[str, ...], *, field: str) -> str:
    """Return the value unchanged if it is one of the allowed words.

    Else raise `InvalidInput`, which suggests the nearest allowed word. `field` names the value in the error.
    """
    if value in allowed:
        return value
    fix = suggest_nearest(value, allowed) if isinstance(value, str) else ""
    if not fix and len(allowed) == 1:
        fix = f'Write "{allowed[0]}"'
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
    """How often and after which delays a failed run is tried again, as `Retry(…)` returns it.

    The delay after failure n is, before jitter: `initial` (fixed); initial × (1 + multiplier × (n - 1)) (linear);
    initial × base^(n - 1), at most `max_delay` (exponential). Durations are in milliseconds.
    """

    #: The run fails for good when this number of its attempts have failed; 1: it is never tried again. Attempts that
    #: were snoozed, handed back or lost in a crash do not count.
    max_attempts: int = 3
    #: How the delay grows from one failure to the next.
    backoff: Backoff = "exponential"
    #: The delay after the first failure.
    initial: Ms = 1_000
    #: Exponential backoff: the factor from one delay to the next.
    base: float = 2.0
    #: Linear backoff: each delay is longer than the delay before it by `initial` times this number.
    multiplier: float = 1.0
    #: Exponential backoff: the longest delay, before jitter.
    max_delay: Ms = 60_000
    #: A random time of at most this share of the delay is added to the delay. 0: nothing is added; 0.5: at most half.
    jitter: float = 0.5


class RetryFilter(Struct, frozen=True):
    """Which errors of a function are worth another attempt. It belongs to the task in code and is never stored."""

    #: Only these are tried again; None: all.
    on: tuple[type[BaseException], ...] | None = None
    #: These are not tried again, even if they are in `on`.
    never: tuple[type[BaseException], ...] = ()


class FilteredRetry(RetryPolicy, frozen=True, omit_defaults=True):
    """A retry policy with a filter, as `Retry(on=…, never=…)` returns it for a task. Only `plain()` is ever stored."""

    filter: RetryFilter = RetryFilter()

    def plain(self) -> RetryPolicy:
        """Return the policy without the filter."""
        return RetryPolicy(**{name: getattr(self, name) for name in RetryPolicy.__struct_fields__})


@refuse_unknown_options("Retry(…)")
def Retry(  # noqa: N802 - it reads as the value it makes
    max_attempts: int = 3,
    backoff: Backoff = "exponential",
    initial: Duration = "1s",
    base: float = 2.0,
    multiplier: float = 1.0,
    max_delay: Duration = "60s",
    jitter: float = 0.5,
    on: type[BaseException] | Iterable[type[BaseException]] | None = None,
    never: type[BaseException] | Iterable[type[BaseException]] = (),
    initial_delay: Duration | None = None,
    backoff_multiplier: float | None = None,
) -> RetryPolicy:
    """Return the retry policy with these values, which `RetryPolicy` explains. `Retry(max_attempts=1)`: no retry.

    `on`: only errors of these classes are tried again; None: all. `never`: errors of these classes are not, even if
    they are in `on`. A time-out counts as `TimeoutError`. A policy with `on` or `never` is for tasks:
    `@ms.task(retry=Retry(on=(ConnectionError,)))`. The words of REST and of the configuration may be used, too:
    `initial_delay` is `initial`, `backoff_multiplier` is `base`, or with linear backoff `multiplier`. Raises
    `InvalidInput` for a value that is out of range.
    """
    check_choice(backoff, BACKOFF, field="retry.backoff")
    initial = initial if initial_delay is None else initial_delay
    if backoff_multiplier is not None:
        base, multiplier = (base, backoff_multiplier) if backoff == "linear" else (backoff_multiplier, multiplier)
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or max_attempts < 1:
        raise InvalidInput(
            "retry.max_attempts",
            f"{max_attempts!r} is not a number of attempts",
            "Use a whole number of at least 1; 1 means no retry",
        )
    if not 0 <= jitter <= 1:
        raise InvalidInput("retry.jitter", f"{jitter!r} is out of range", "Use a number from 0 to 1")
    if not 1 <= base <= 1000:
        raise InvalidInput("retry.base", f"{base!r} is out of range", "Use a number from 1 to 1000")
    if not 0 <= multiplier <= 1_000_000:
        raise InvalidInput("retry.multiplier", f"{multiplier!r} is out of range", "Use a number from 0 to 1000000")
    policy: dict[str, Any] = {
        "max_attempts": max_attempts,
        "backoff": backoff,
        "initial": duration_ms(initial, field="retry.initial"),
        "base": float(base),
        "multiplier": float(multiplier),
        "max_delay": duration_ms(max_delay, field="retry.max_delay"),
        "jitter": float(jitter),
    }
    only = None if on is None else _parse_error_classes(on, "retry.on")
    if only == ():
        raise InvalidInput("retry.on", "is empty, so no error is tried again", "Write Retry(max_attempts=1) for that")
    kept_out = _parse_error_classes(never, "retry.never")
    if only is None and not kept_out:
        return RetryPolicy(**policy)
    return FilteredRetry(**policy, filter=RetryFilter(only, kept_out))


def _parse_error_classes(value: Any, field: str) -> tuple[type[BaseException], ...]:
    """Return the exception classes in `value`, one class or several. Raises: InvalidInput for anything else."""
    classes = tuple(value) if isinstance(value, tuple | list | set | frozenset) else (value,)
    for item in classes:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise InvalidInput(
                field, f"{item!r} is not an exception class", f"Write for example {field[6:]}=(ConnectionError,)"
            )
    return classes


def check_retry(value: RetryPolicy | None) -> RetryPolicy | None:
    """Return the value unchanged if it is a `RetryPolicy` that can be stored, or None.

    Raises `InvalidInput` for any other value. Why: without the check, the mistake would show only when a run fails.
    """
    if isinstance(value, FilteredRetry):
        field = "retry.never" if value.filter.on is None else "retry.on"
        raise InvalidInput(
            field,
            "names classes, which belong to a task and are not stored with a schedule or a call",
            f"Give it to the task: @ms.task(retry=Retry({field[6:]}=…))",
        )
    return check_task_retry(value)


def check_task_retry(value: RetryPolicy | None) -> RetryPolicy | None:
    """Return the value unchanged if it is a `RetryPolicy`, with or without a filter, or None. Raises: InvalidInput."""
    if value is None or isinstance(value, RetryPolicy):
        return value
    raise InvalidInput("retry", f"{value!r} is not a retry policy", "Write for example Retry(max_attempts=5)")


class Segment(Struct, frozen=True):
    """A part of the day, from `start` up to but not including `end`, both in seconds since local midnight.

    If `end` is less than `start`, the segment crosses midnight.
    """

    start: int
    end: int


class WindowSpec(Struct, frozen=True, omit_defaults=True):
    """A time window in which runs may begin: weekdays (0 = Monday) and segments of the day, in the zone `tz`.

    Without segments, the whole day belongs to the window.
    """

    #: Stored windows name a zone. "" in a new window: the zone of the schedule that gets it.
    tz: str = "UTC"
    weekdays: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    segments: tuple[Segment, ...] = ()


class RunOptions(Struct, frozen=True, omit_defaults=True):
    """Options that are stored with a run.

    In `timeout`, `retry`, `recovery` and `max_crashes`, None means the setting of the run's task.
    """

    #: The longest time that one attempt may take.
    timeout: Ms | None = None
    retry: RetryPolicy | None = None
    recovery: Recovery | None = None
    #: The run fails for good when this number of its leases ended without an outcome.
    max_crashes: int | None = None
    #: The time window in which the run may begin; outside the window it is skipped. None: it may begin at any time.
    window: WindowSpec | None = None
    #: The run is skipped if it has not begun this long after it was due. None: no such limit.
    start_deadline: Ms | None = None
    #: What becomes of the schedule when the run's retries are used up. None: it continues.
    on_exhausted: OnExhausted | None = None
    #: The zone in which the handler gets the fire time. None: UTC.
    tz: str | None = None
    #: True if the end of this run touches its schedule. The settler then plans the next fire (fixed delay), or deletes
    #: the finished schedule (`terminal="delete"`).
    rearm: bool = False
    #: The HTTP request of a run of the built-in task `http`. None: a run of another task.
    http: HttpTarget | None = None
