"""Events of every instance for the subscribers of this one: the store's log, followed from now on.

The log is the one place that has all of them, in order, each once. Whoever knows that it has grown says so: the store's
hints, this instance's commits, a broker's topic `events`; without any of them it is looked at twice a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mainspring.engine.service import Service
from mainspring.model.events import Event
from mainspring.ports.following import Follower

#: Seconds between two looks: soon while events come, then slower.
SOON, LATER = 0.05, 0.5
BATCH = 500


class Everywhere(Service):
    """Lives on the engine's loop between start and stop, if anybody wants it."""

    name = "everywhere"

    def __init__(self, ns: str, follow: Callable[[], Awaitable[Follower]], publish: Callable[[Event], None]) -> None:
        super().__init__(LATER)
        self._ns = ns
        self._follow = follow
        self._publish = publish
        self._follower: Follower | None = None
        self._pause = SOON

    async def begin(self) -> Follower:
        """Find the end of the log: what comes after it is handed on."""
        if self._follower is None:
            self._follower = await self._follow()
        return self._follower

    async def run_once(self) -> float:
        """Hand on what is new."""
        follower = await self.begin()
        steps = await follower.steps(BATCH)
        for _, event in steps:
            if event.ns == self._ns:
                self._publish(event)
        if steps:
            self._pause = SOON
            return 0.0
        self._pause = min(LATER, self._pause * 1.5)
        return self._pause
