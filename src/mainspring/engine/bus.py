"""The event bus: what this process committed, to those who asked, in order; a failing one harms nobody."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from mainspring.model.events import Event

log = logging.getLogger("mainspring.events")

Subscriber = Callable[[Any], Awaitable[None] | None]
MAX_QUEUE = 10_000


class _Subscription:
    def __init__(
        self,
        types: tuple[type[Event], ...],
        call: Subscriber,
        failed: Callable[[Event, str], None],
        everywhere: bool,
    ) -> None:
        self.types = types
        self.everywhere = everywhere
        self._call = call
        self._failed = failed
        self._queue: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def push(self, event: Event) -> None:
        if len(self._queue) >= MAX_QUEUE:
            self._queue.popleft()
            self.dropped += 1
            if self.dropped == 1:
                log.warning("a subscriber of %s is too slow: events are left out", type(event).__name__)
        self._queue.append(event)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._queue:
                event = self._queue.popleft()
                try:
                    answer = self._call(event)
                    if inspect.isawaitable(answer):
                        await answer
                except Exception as error:
                    log.exception("a subscriber of %s failed", type(event).__name__)
                    self._failed(event, f"{type(error).__name__}: {error}")
        finally:
            self._task = None

    async def settle(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])


class Bus:
    """Subscribers run on the handlers' loop; `publish` is called on the engine's."""

    def __init__(self) -> None:
        self._subscriptions: list[_Subscription] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._report: Callable[[Event, str], None] | None = None

    @property
    def listening(self) -> bool:
        """True when anybody wants the events of this process."""
        return any(not subscription.everywhere for subscription in self._subscriptions)

    @property
    def listening_everywhere(self) -> bool:
        """True when anybody wants the events of every instance."""
        return any(subscription.everywhere for subscription in self._subscriptions)

    def subscribe(self, types: tuple[type[Event], ...], call: Subscriber, *, everywhere: bool = False) -> None:
        """Hand every event of these types (or below them) to `call`: of this process, or of every instance."""
        self._subscriptions.append(_Subscription(types, call, self._subscriber_failed, everywhere))

    def bind(self, loop: asyncio.AbstractEventLoop | None, report: Callable[[Event, str], None] | None) -> None:
        """Where subscribers run, and who is told when one fails."""
        self._loop = loop
        self._report = report

    def publish(self, event: Event) -> None:
        """Queue an event of this process for everyone who asked; at most once, never blocks."""
        self._hand_on(event, everywhere=False)

    def publish_everywhere(self, event: Event) -> None:
        """The same for an event of any instance."""
        self._hand_on(event, everywhere=True)

    def _hand_on(self, event: Event, *, everywhere: bool) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        for subscription in self._subscriptions:
            if subscription.everywhere is everywhere and isinstance(event, subscription.types):
                loop.call_soon_threadsafe(subscription.push, event)

    async def settle(self) -> None:
        """Return when every queued event was handed out; called on the handlers' loop."""
        for subscription in self._subscriptions:
            await subscription.settle()

    def _subscriber_failed(self, event: Event, error: str) -> None:
        if self._report is not None:
            self._report(event, error)
