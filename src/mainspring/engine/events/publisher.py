"""The event publisher: passes committed events to the subscribers in this process and to the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from mainspring.engine.events.bus import Bus
from mainspring.engine.events.log_follower import LogFollower
from mainspring.model.events import Event
from mainspring.ports.log_cursor import LogCursor

if TYPE_CHECKING:
    from mainspring.engine.broker.link import BrokerLink


class EventPublisher:
    """Publishes events of this process, and makes the log follower for subscribers to the events of every instance.

    Thread: engine loop.
    """

    def __init__(
        self, bus: Bus, broker_link: BrokerLink | None, ns: str, follow: Callable[[], Awaitable[LogCursor]]
    ) -> None:
        """Publish to `bus`, and to `broker_link` if given. `ns`: the namespace whose events the log follower publishes.

        `follow` opens a cursor at the end of the event log.
        """
        self._bus = bus
        self._broker_link = broker_link
        self._ns = ns
        self._follow = follow
        self._follower: LogFollower | None = None

    @property
    def has_listeners(self) -> bool:
        """True if an event given to `publish` may reach a subscriber in this process or a reader of the broker."""
        link = self._broker_link
        return self._bus.has_local_subscribers or (link is not None and link.dispatcher.has_readers)

    def publish(self, event: Event) -> None:
        """Pass an event that was committed in this process to its subscribers and to the broker. Never block.

        Subscribers get only events of the app's namespace. The engine plans schedules of other namespaces, too.
        """
        if event.ns == self._ns:
            self._bus.publish(event)
        if self._broker_link is not None:
            self._broker_link.dispatcher.publish_event(event)

    def follow_log(self) -> LogFollower | None:
        """Make the log follower and return it, for the caller to start. Messages of the broker about events wake it.

        Return None if there is a follower already, or if no subscriber wants the events of every instance.
        """
        if self._follower is not None or not self._bus.has_global_subscribers:
            return None
        self._follower = LogFollower(self._ns, self._follow, self._bus.publish_everywhere)
        if self._broker_link is not None:
            self._broker_link.listen(self._follower.wake)
        return self._follower

    def forget_follower(self) -> None:
        """Forget the log follower, because the loops of the instance have stopped. `follow_log` can make a new one."""
        self._follower = None

    def log_has_grown(self) -> None:
        """Wake the log follower, if there is one, because the event log may have grown."""
        if self._follower is not None:
            self._follower.wake()
