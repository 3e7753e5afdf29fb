"""Retries: how long to wait after the n-th failure, and whether to try again at all."""

from __future__ import annotations

from typing import Protocol

from mainspring.model.instant import Ms
from mainspring.model.policies import RetryPolicy


class Randomness(Protocol):
    """What jitter needs of a `random.Random`."""

    def random(self) -> float: ...


def backoff(policy: RetryPolicy, failure: int) -> Ms:
    """The delay after failure n (from 1), before jitter.

    fixed `initial` · linear `initial × (1 + multiplier × (n−1))` · exponential `min(initial × base^(n−1), max_delay)`.
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
    """When to try again after `failures` failures in all, or None when the budget is spent."""
    if failures >= policy.max_attempts:
        return None
    delay = backoff(policy, failures)
    return now + round(delay * (1 + policy.jitter * rng.random()))
