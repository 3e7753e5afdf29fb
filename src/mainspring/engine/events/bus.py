"""The event bus: calls the subscribers of this process with committed events, in order, independently of each other."""

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
#: The most events queued for one subscriber; beyond that the oldest are dropped.
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
        """Call the subscriber `call` with events of `types`, and report each of its errors by `failed(event, error)`.

        `error` is the text of the error. `everywhere`: True if the subscriber wants the events of every instance, False
        for those of this process.
        """
        self.types = types
        self.everywhere = everywhere
        self._call = call
        self._name = getattr(call, "__qualname__", None) or repr(call)
        self._failed = failed
        self._queue: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None
        #: Number of events dropped because the queue was full.
        self.dropped = 0

    def push(self, event: Event) -> None:
        """Queue an event for the subscriber. If the queue is full, drop the oldest event in it."""
        if len(self._queue) >= MAX_SUBSCRIBER_EVENTS:
            self._queue.popleft()
            self.dropped += 1
            if self.dropped == 1:
                log.warning(
                    "the subscriber %s to %s is too slow: more than %d events wait for it, so the oldest are dropped",
                    self._name,
                    type(event).__name__,
                    MAX_SUBSCRIBER_EVENTS,
                )
        self._queue.append(event)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        """Call the subscriber with each queued event, in order. Log and report each of its errors, and go on."""
        try:
            while self._queue:
                event = self._queue.popleft()
                try:
                    answer = self._call(event)
                    if inspect.isawaitable(answer):
                        await answer
                except Exception as error:
                    log.exception("the subscriber %s to %s failed", self._name, type(event).__name__)
                    self._failed(event, f"{type(error).__name__}: {error}")
        finally:
            self._task = None

    async def settle(self) -> None:
        """Return when the subscriber has handled every queued event."""
        while self._task is not None:
            await asyncio.wait([self._task])


class Bus:
    """The subscriptions of this process, and the way for events to reach them.

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

        `everywhere`: True for the events of every instance, False for the events of this process.
        """
        self._subscriptions.append(_Subscription(types, call, self._subscriber_failed, everywhere))
        if everywhere:
            self.has_global_subscribers = True
        else:
            self.has_local_subscribers = True

    def bind(self, loop: asyncio.AbstractEventLoop | None, report: Callable[[Event, str], None] | None) -> None:
        """Set the event loop on which subscribers run, and the function that reports a subscriber's failure.

        `report(event, error)` gets the event and the text of the error; while it is None, failures are only logged.
        While `loop` is None, published events are dropped.
        """
        self._loop = loop
        self._report = report

    def publish(self, event: Event) -> None:
        """Queue an event of this process for the subscribers with `everywhere=False`. Never block.

        The event is lost if there is no open event loop for subscribers, and can be lost if a subscriber's queue is
        full.
        """
        self._push(event, everywhere=False)

    def publish_everywhere(self, event: Event) -> None:
        """Queue an event of any instance, read from the event log, for the subscribers with `everywhere=True`.

        Never block. The event can be lost like that of `publish`: without an open event loop, or if a queue is full.
        """
        self._push(event, everywhere=True)

    def _push(self, event: Event, *, everywhere: bool) -> None:
        """Queue an event for the subscribers to its type that gave this value of `everywhere` when they subscribed."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        for subscription in self._subscriptions:
            if subscription.everywhere is everywhere and isinstance(event, subscription.types):
                loop.call_soon_threadsafe(subscription.push, event)

    async def settle(self) -> None:
        """Return when the subscribers have handled every queued event. Thread: the handlers' loop."""
        for subscription in self._subscriptions:
            await subscription.settle()

    def _subscriber_failed(self, event: Event, error: str) -> None:
        """Report that a subscriber raised `error` when it was called with `event`. The subscriptions call this."""
        if self._report is not None:
            self._report(event, error)
