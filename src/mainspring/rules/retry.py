"""Retries: whether a failed run is tried again, and after which delay."""

from __future__ import annotations

from typing import Protocol

from mainspring.model.instant import Ms
from mainspring.model.policies import RetryPolicy


class Randomness(Protocol):
    """The part of `random.Random` that jitter uses."""

    def random(self) -> float:
        """Return a number from 0 up to, but not including, 1."""
        ...


def backoff(policy: RetryPolicy, failure: int) -> Ms:
    """Return the delay in milliseconds after the n-th failure (n from 1), before jitter.

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
    """Return the instant of the next attempt after `failures` failures, or None if no attempt is left.

    Jitter adds a random share of the delay, up to the policy's `jitter`.
    """
    if failures >= policy.max_attempts:
        return None
    delay = backoff(policy, failures)
    return now + round(delay * (1 + policy.jitter * rng.random()))
