"""Rate limit: one token bucket for each caller."""

from __future__ import annotations

from collections.abc import Callable

#: Callers whose buckets are stored.
_MAX_BUCKETS = 10_000


class RateLimit:
    """Token buckets by caller.

    Beyond `_MAX_BUCKETS` callers, full buckets are dropped, which changes nothing: a new bucket is full, too.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, name: str, rate: float, burst: int) -> float:
        """Take a token from the bucket of caller `name`; return 0, or the seconds to wait if there is none.

        `rate`: tokens a second. `burst`: tokens in a full bucket.
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

    def _drop_full(self, now: float, rate: float, burst: int) -> None:
        """Drop full buckets; if there is none, drop a tenth of all, the oldest first."""
        full = [name for name, (level, at) in self._levels.items() if level + (now - at) * rate >= burst]
        for name in full or list(self._levels)[: _MAX_BUCKETS // 10]:
            del self._levels[name]
