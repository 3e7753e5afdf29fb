"""Translate the objects `retryPolicy` and `window` of a request, and durations, into policies."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import UNSET

from mainspring.api.schemas import DurationMs, RetryBody, WindowBody
from mainspring.model.policies import Retry, RetryPolicy, WindowSpec
from mainspring.rules.windows import Window


def amend_retry(base: RetryPolicy, body: RetryBody) -> RetryPolicy:
    """Return the policy `base` changed by `body`, the retry policy in a request. Fields that `body` omits stay.

    `backoffMultiplier` in a request is the policy's `multiplier` for linear backoff, else its `base`.
    """
    backoff = or_default(body.backoff, base.backoff)
    linear = backoff == "linear"
    return Retry(
        max_attempts=or_default(body.max_attempts, base.max_attempts),
        backoff=backoff,
        initial=parse_duration(or_default(body.initial_delay_ms, base.initial)),
        base=base.base if linear else or_default(body.backoff_multiplier, base.base),
        multiplier=or_default(body.backoff_multiplier, base.multiplier) if linear else base.multiplier,
        max_delay=parse_duration(or_default(body.max_delay_ms, base.max_delay)),
        jitter=or_default(body.jitter, base.jitter),
    )


def parse_window(body: WindowBody) -> WindowSpec:
    """Return the time window that a request describes. Raises: InvalidInput."""
    return Window(*body.segments, weekdays=tuple(body.weekdays), tz=or_default(body.timezone, None))


def or_default(value: Any, default: Any) -> Any:
    """Return `value`, or `default` if the request does not have the field."""
    return default if value is UNSET else value


def parse_duration(value: DurationMs | Any) -> timedelta | str:
    """Return a duration of a request, which is milliseconds or text, as an option of a schedule takes it."""
    return timedelta(milliseconds=value) if isinstance(value, int) else str(value)
