"""Token buckets, one for each caller: a burst, then so many a second."""

from __future__ import annotations

from collections.abc import Callable

_REMEMBERED = 10_000


class Buckets:
    """Bounded: when there are too many callers, those whose buckets are full again are forgotten."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, name: str, rate: float, burst: int) -> float:
        """Take one; the seconds to wait when there is none."""
        now = self._monotonic()
        level, at = self._levels.get(name, (float(burst), now))
        level = min(float(burst), level + (now - at) * rate)
        if level < 1:
            return (1 - level) / rate
        if len(self._levels) >= _REMEMBERED and name not in self._levels:
            self._forget(now, rate, burst)
        self._levels[name] = (level - 1, now)
        return 0.0

    def _forget(self, now: float, rate: float, burst: int) -> None:
        full = [name for name, (level, at) in self._levels.items() if level + (now - at) * rate >= burst]
        for name in full or list(self._levels)[: _REMEMBERED // 10]:
            del self._levels[name]
