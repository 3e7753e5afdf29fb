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
#: The most events kept for one subscriber while the engine does not run; beyond that the oldest are dropped.
MAX_EARLY_EVENTS = 1_000


class _Subscription:
    """One subscriber with its queue of events, and the task that calls it while the queue is not empty.

    Thread: the handlers' loop, except for `keep` and `forget_loop`.
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
        #: Events that were published while there was no loop; `push_kept` queues them.
        self._early: deque[Event] = deque()
        self._early_dropped = False
        self._task: asyncio.Task[None] | None = None
        #: Number of events dropped because the queue was full.
        self.dropped = 0

    def keep(self, event: Event) -> None:
        """Keep an event until `push_kept`, because there is no loop yet. Drop the oldest if too many are kept.

        Thread: engine loop.
        """
        if len(self._early) >= MAX_EARLY_EVENTS:
            self._early.popleft()
            if not self._early_dropped:
                self._early_dropped = True
                log.warning(
                    "the engine does not run, and more than %d events wait for the subscriber %s, so the oldest are "
                    "dropped",
                    MAX_EARLY_EVENTS,
                    self._name,
                )
        self._early.append(event)

    @property
    def has_kept(self) -> bool:
        """True if events were kept that `push_kept` has not queued yet."""
        return bool(self._early)

    def push_kept(self) -> None:
        """Queue the events that were kept, in order."""
        while self._early:
            self.push(self._early.popleft())

    def forget_loop(self) -> None:
        """Drop every event and the task that handles them. A forked child needs this: both are its parent's."""
        self._queue.clear()
        self._early.clear()
        self._task = None

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
        Events of this process that were published before there was an open loop are queued on `loop` now, in order.
        Thread: engine loop.
        """
        self._loop = loop
        self._report = report
        if loop is not None:
            for subscription in self._subscriptions:
                if subscription.has_kept:
                    loop.call_soon_threadsafe(subscription.push_kept)

    def forget_loop(self) -> None:
        """Drop the loop and every event that waits for a subscriber. A forked child needs this: they are its parent's.

        The subscriptions stay.
        """
        self._loop = None
        self._report = None
        for subscription in self._subscriptions:
            subscription.forget_loop()

    def publish(self, event: Event) -> None:
        """Queue an event of this process for the subscribers with `everywhere=False`. Never block.

        Without an open event loop for subscribers, because the engine does not run, up to `MAX_EARLY_EVENTS` wait for
        each subscriber until it does. An event can be lost if a subscriber's queue is full.
        """
        self._push(event, everywhere=False)

    def publish_everywhere(self, event: Event) -> None:
        """Queue an event of any instance, read from the event log, for the subscribers with `everywhere=True`.

        Never block. The event is lost without an open event loop, and can be lost if a queue is full.
        """
        self._push(event, everywhere=True)

    def _push(self, event: Event, *, everywhere: bool) -> None:
        """Queue an event for the subscribers to its type that gave this value of `everywhere` when they subscribed."""
        loop = self._loop
        is_closed = loop is None or loop.is_closed()
        for subscription in self._subscriptions:
            if subscription.everywhere is everywhere and isinstance(event, subscription.types):
                if loop is not None and not is_closed:
                    loop.call_soon_threadsafe(subscription.push, event)
                elif not everywhere:
                    subscription.keep(event)

    async def settle(self) -> None:
        """Return when the subscribers have handled every queued event. Thread: the handlers' loop."""
        for subscription in self._subscriptions:
            await subscription.settle()

    def _subscriber_failed(self, event: Event, error: str) -> None:
        """Report that a subscriber raised `error` when it was called with `event`. The subscriptions call this."""
        if self._report is not None:
            self._report(event, error)
