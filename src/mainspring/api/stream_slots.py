"""Slots of event streams: how many streams an instance serves at a time, in all and for one API key."""

from __future__ import annotations

from collections import Counter

#: The most event streams that one instance serves at a time.
MAX_STREAMS = 100
#: The most of them that one API key may have, so that it leaves slots to others.
MAX_STREAMS_OF_KEY = 50


class StreamSlots:
    """Counts open event streams. `max_total` and `max_of_key` may be changed at any time."""

    def __init__(self, max_total: int = MAX_STREAMS, max_of_key: int = MAX_STREAMS_OF_KEY) -> None:
        self.max_total = max_total
        self.max_of_key = max_of_key
        #: Name of a caller → number of its open streams.
        self._open: Counter[str] = Counter()

    def take(self, caller: str) -> str:
        """Take a slot for a stream of `caller` and return "", or return the reason why there is none.

        `caller` is the name of an API key, or "" or "local" for requests without a key, which share the total only.
        """
        total = self._open.total()
        if total >= self.max_total:
            return f"{total} event streams are open; that is the limit"
        if caller not in ("", "local") and self._open[caller] >= self.max_of_key:
            return f"{self._open[caller]} event streams of this key are open; that is the limit"
        self._open[caller] += 1
        return ""

    def give_back(self, caller: str) -> None:
        """Free a slot of `caller`."""
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]
