"""Retries: compute whether and when a failed run is tried again, by its `RetryPolicy` and its task's `RetryFilter`."""

from __future__ import annotations

from typing import Protocol

from mainspring.model.instant import Ms
from mainspring.model.outcome import Fail
from mainspring.model.policies import RetryFilter, RetryPolicy


class Randomness(Protocol):
    """Source of random numbers for jitter: `random.Random`, or fixed numbers in a test."""

    def random(self) -> float:
        """Return a number from 0 up to, but not including, 1."""
        ...


def backoff(policy: RetryPolicy, failure: int) -> Ms:
    """Return the delay in milliseconds between a run's failure number `failure` and its next attempt, before jitter.

    With n = `failure`, counted from 1:

    - fixed: `initial`
    - linear: `initial × (1 + multiplier × (n - 1))`
    - exponential: `initial × base^(n - 1)`, at most `max_delay`
    """
    if policy.backoff == "fixed":
        return policy.initial
    if policy.backoff == "linear":
        return round(policy.initial * (1 + policy.multiplier * (failure - 1)))
    try:
        delay = policy.initial * policy.base ** (failure - 1)
    except OverflowError:
        return policy.max_delay
    return round(min(delay, policy.max_delay))


def retry_at(policy: RetryPolicy, failures: int, now: Ms, rng: Randomness) -> Ms | None:
    """Return the instant of the next attempt of a run that failed at `now`, or None if no attempt is left.

    `failures` is the number of the run's failures, including this one. The delay is the result of `backoff` and a
    random addition: at most `policy.jitter` times that delay.
    """
    if failures >= policy.max_attempts:
        return None
    delay = backoff(policy, failures)
    return now + round(delay * (1 + policy.jitter * rng.random()))


def is_worth_retry(error: BaseException, by: RetryFilter | None) -> bool:
    """Return True if a handler that raised `error` may be tried again. `by` None: after every error but `Fail`.

    A group of errors is not tried again if one error in it is not; `by.on` must name its class or all of its errors.
    """
    if _is_ruled_out(error, () if by is None else by.never):
        return False
    return by is None or by.on is None or _is_named(error, by.on)


def _is_ruled_out(error: BaseException, never: tuple[type[BaseException], ...]) -> bool:
    """Return True if `error`, or an error inside a group, is a `Fail` or of a class in `never`."""
    if isinstance(error, (Fail, *never)):
        return True
    return isinstance(error, BaseExceptionGroup) and any(_is_ruled_out(one, never) for one in error.exceptions)


def _is_named(error: BaseException, on: tuple[type[BaseException], ...]) -> bool:
    """Return True if `error` is of a class in `on`, or is a group in which each error is."""
    if isinstance(error, on):
        return True
    return isinstance(error, BaseExceptionGroup) and all(_is_named(one, on) for one in error.exceptions)
