"""Rate limit of requests: one token bucket for each caller."""

from __future__ import annotations

from collections.abc import Callable

#: The most buckets in memory.
_MAX_BUCKETS = 10_000


class RateLimit:
    """Token buckets, one for each caller. A caller without a bucket gets a full one.

    At most `_MAX_BUCKETS` are kept. Beyond that, full buckets are removed, which changes nothing for their callers. If
    no bucket is full, the oldest tenth is removed, and their callers get full buckets again.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        #: Caller → number of tokens in its bucket, and when that was counted, in seconds of `monotonic`.
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, name: str, rate: float, burst: int) -> float:
        """Take a token from the bucket of caller `name` and return 0.

        If the bucket is empty, take none and return the seconds until it has one. `rate`: tokens added each second.
        `burst`: tokens in a full bucket.
        """
        now = self._monotonic()
        level, at = self._levels.get(name, (float(burst), now))
        level = min(float(burst), level + (now - at) * rate)
        if level < 1:
            return (1 - level) / rate
        if len(self._levels) >= _MAX_BUCKETS and name not in self._levels:
            self._drop_full(now, rate, burst)
        self._levels[name] = (level - 1, now)
        return 0.0

    def give_back(self, name: str) -> None:
        """Put a token that was taken back into the bucket of caller `name`."""
        if name in self._levels:
            level, at = self._levels[name]
            self._levels[name] = (level + 1, at)

    def _drop_full(self, now: float, rate: float, burst: int) -> None:
        """Make room for a new bucket: remove all full buckets. If there are none, remove the oldest tenth of all."""
        full = [name for name, (level, at) in self._levels.items() if level + (now - at) * rate >= burst]
        for name in full or list(self._levels)[: _MAX_BUCKETS // 10]:
            del self._levels[name]
