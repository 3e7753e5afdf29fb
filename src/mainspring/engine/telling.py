"""Who hears what happens: subscribers here, other programs by the broker, subscribers to every instance's events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from mainspring.engine.bus import Bus
from mainspring.engine.everywhere import Everywhere
from mainspring.model.events import Event
from mainspring.ports.following import Follower

if TYPE_CHECKING:
    from mainspring.engine.brokering import Brokering


class Telling:
    """Lives on the engine's loop."""

    def __init__(
        self, bus: Bus, brokering: Brokering | None, ns: str, follow: Callable[[], Awaitable[Follower]]
    ) -> None:
        self._bus = bus
        self._brokering = brokering
        self._ns = ns
        self._follow = follow
        self.everywhere: Everywhere | None = None

    @property
    def listening(self) -> bool:
        """True when anybody hears what is committed here."""
        return self._bus.listening or (self._brokering is not None and self._brokering.dispatcher.wanted)

    def publish(self, event: Event) -> None:
        """Something was committed here."""
        self._bus.publish(event)
        if self._brokering is not None:
            self._brokering.dispatcher.event(event)

    def follow_all(self) -> Everywhere | None:
        """The loop that brings events of all instances, when it has to be started: somebody wants them."""
        if self.everywhere is not None or not self._bus.listening_everywhere:
            return None
        self.everywhere = Everywhere(self._ns, self._follow, self._bus.publish_everywhere)
        if self._brokering is not None:
            self._brokering.listen(self.everywhere.wake)
        return self.everywhere

    def grown(self) -> None:
        """The log may have grown."""
        if self.everywhere is not None:
            self.everywhere.wake()
