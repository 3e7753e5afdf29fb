"""The log follower: reads new events of every instance from the store's event log, for subscribers in this process.

The log holds every event once, in order. It is read when it may have grown: after a hint of the store, after a commit
in this process, or after a message in the broker's topic `events`. Without any of these it is read at least twice a
second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mainspring.engine.loop import Loop
from mainspring.model.events import Event
from mainspring.ports.log_cursor import LogCursor

#: Seconds between two reads if nothing wakes the follower. With each read that finds no event, the pause grows by half,
#: starting from the first value, up to the second.
MIN_READ_PAUSE_SECONDS, MAX_READ_PAUSE_SECONDS = 0.05, 0.5
#: The most events in one read.
READ_BATCH_EVENTS = 500


class LogFollower(Loop):
    """Publishes each event of a namespace that is appended to the log after `begin`. Thread: engine loop."""

    name = "log-follower"

    def __init__(self, ns: str, follow: Callable[[], Awaitable[LogCursor]], publish: Callable[[Event], None]) -> None:
        """Publish the events of the namespace `ns` through `publish`. `follow` opens a cursor at the end of the log."""
        super().__init__(MAX_READ_PAUSE_SECONDS)
        self._ns = ns
        self._follow = follow
        self._publish = publish
        self._follower: LogCursor | None = None
        self._pause = MIN_READ_PAUSE_SECONDS

    async def begin(self) -> LogCursor:
        """Open a cursor at the end of the log and return it; if there is a cursor already, return that cursor.

        Only events appended later are published. Raises: StoreError.
        """
        if self._follower is None:
            self._follower = await self._follow()
        return self._follower

    async def run_once(self) -> float:
        """Read about `READ_BATCH_EVENTS` new events at most, and publish those of the namespace.

        Return the seconds to wait; 0 if there were events, because there may be more. Raises: StoreError.
        """
        follower = await self.begin()
        steps = await follower.read(READ_BATCH_EVENTS)
        for _, event in steps:
            if event.ns == self._ns:
                self._publish(event)
        if steps:
            self._pause = MIN_READ_PAUSE_SECONDS
            return 0.0
        self._pause = min(MAX_READ_PAUSE_SECONDS, self._pause * 1.5)
        return self._pause
