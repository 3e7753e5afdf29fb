"""The log follower: reads new events of every instance from the store's event log, for subscribers in this process.

The log holds every event once, in order. It is read when a hint of the store, a commit here, or a message in the
broker's topic `events` says that it has grown, and twice a second without any of these.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mainspring.engine.loop import Loop
from mainspring.model.events import Event
from mainspring.ports.log_cursor import LogCursor

#: Seconds between two reads: at first after an event, and at most.
MIN_READ_PAUSE, MAX_READ_PAUSE = 0.05, 0.5
#: Events read at once.
READ_BATCH = 500


class LogFollower(Loop):
    """Publishes each event of a namespace that is appended from `begin` on. Thread: engine loop."""

    name = "everywhere"

    def __init__(self, ns: str, follow: Callable[[], Awaitable[LogCursor]], publish: Callable[[Event], None]) -> None:
        """`follow` opens a cursor at the end of the log; `publish` receives the events."""
        super().__init__(MAX_READ_PAUSE)
        self._ns = ns
        self._follow = follow
        self._publish = publish
        self._follower: LogCursor | None = None
        self._pause = MIN_READ_PAUSE

    async def begin(self) -> LogCursor:
        """Open the cursor at the end of the log, unless that was done, and return it.

        Only events behind that end are published. Raises: StoreError.
        """
        if self._follower is None:
            self._follower = await self._follow()
        return self._follower

    async def run_once(self) -> float:
        """Publish up to `READ_BATCH` new events of the namespace. Return the seconds until the next read."""
        follower = await self.begin()
        steps = await follower.read(READ_BATCH)
        for _, event in steps:
            if event.ns == self._ns:
                self._publish(event)
        if steps:
            self._pause = MIN_READ_PAUSE
            return 0.0
        self._pause = min(MAX_READ_PAUSE, self._pause * 1.5)
        return self._pause
