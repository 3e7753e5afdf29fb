"""The event bus: calls the subscribers of this process with committed events, in order, isolated from each other."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from mainspring.model.events import Event

log = logging.getLogger("mainspring.events")

#: A function or coroutine function that is called with an event.
Subscriber = Callable[[Any], Awaitable[None] | None]
#: Events queued for one subscriber; beyond that the oldest are dropped.
MAX_SUBSCRIBER_EVENTS = 10_000


class _Subscription:
    """One subscriber with its queue of events, and the task that calls it while the queue is not empty.

    Thread: the handlers' loop.
    """

    def __init__(
        self,
        types: tuple[type[Event], ...],
        call: Subscriber,
        failed: Callable[[Event, str], None],
        everywhere: bool,
    ) -> None:
        """`call` is the subscriber; `failed(event, error)` reports that it raised an error."""
        self.types = types
        self.everywhere = everywhere
        self._call = call
        self._failed = failed
        self._queue: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def push(self, event: Event) -> None:
        """Queue an event for the subscriber; if the queue is full, drop the oldest."""
        if len(self._queue) >= MAX_SUBSCRIBER_EVENTS:
            self._queue.popleft()
            self.dropped += 1
            if self.dropped == 1:
                log.warning("a subscriber to %s is too slow: its oldest events are dropped", type(event).__name__)
        self._queue.append(event)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        """Call the subscriber with each queued event, in order. Log and report its errors, and go on."""
        try:
            while self._queue:
                event = self._queue.popleft()
                try:
                    answer = self._call(event)
                    if inspect.isawaitable(answer):
                        await answer
                except Exception as error:
                    log.exception("a subscriber to %s failed", type(event).__name__)
                    self._failed(event, f"{type(error).__name__}: {error}")
        finally:
            self._task = None

    async def settle(self) -> None:
        """Return when every queued event was handled."""
        while self._task is not None:
            await asyncio.wait([self._task])


class Bus:
    """The subscriptions of this process.

    Thread: `publish` is called on the engine loop; subscribers are called on the handlers' loop.
    """

    def __init__(self) -> None:
        self._subscriptions: list[_Subscription] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._report: Callable[[Event, str], None] | None = None
        #: True once there is a subscription to the events of this process.
        self.has_local_subscribers = False
        #: True once there is a subscription to the events of every instance.
        self.has_global_subscribers = False

    def subscribe(self, types: tuple[type[Event], ...], call: Subscriber, *, everywhere: bool = False) -> None:
        """From now on, call `call` with every event of these types or their subclasses.

        `everywhere`: with events of every instance; otherwise with those of this process.
        """
        self._subscriptions.append(_Subscription(types, call, self._subscriber_failed, everywhere))
        if everywhere:
            self.has_global_subscribers = True
        else:
            self.has_local_subscribers = True

    def bind(self, loop: asyncio.AbstractEventLoop | None, report: Callable[[Event, str], None] | None) -> None:
        """Set the event loop on which subscribers run, and the callback that reports a subscriber's failure.

        While `loop` is None, published events are dropped; while `report` is None, failures are only logged.
        """
        self._loop = loop
        self._report = report

    def publish(self, event: Event) -> None:
        """Queue an event of this process for the subscribers to such events. Never blocks.

        An event may be lost: if the subscribers' event loop is closed, or if a subscriber's queue is full.
        """
        self._push(event, everywhere=False)

    def publish_everywhere(self, event: Event) -> None:
        """Queue an event read from the log, whichever instance wrote it, for the subscribers with `everywhere=True`.

        Never blocks.
        """
        self._push(event, everywhere=True)

    def _push(self, event: Event, *, everywhere: bool) -> None:
        """Queue an event for the subscribers to its type that subscribed with this value of `everywhere`."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        for subscription in self._subscriptions:
            if subscription.everywhere is everywhere and isinstance(event, subscription.types):
                loop.call_soon_threadsafe(subscription.push, event)

    async def settle(self) -> None:
        """Return when every queued event was handled. Thread: the handlers' loop."""
        for subscription in self._subscriptions:
            await subscription.settle()

    def _subscriber_failed(self, event: Event, error: str) -> None:
        if self._report is not None:
            self._report(event, error)
