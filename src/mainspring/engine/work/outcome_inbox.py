"""The outcome inbox: outcomes on their way from executors, which run on many threads, to the worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from mainspring.engine.work.slots import Slots
from mainspring.model.outcome import Outcome
from mainspring.ports.executor import HeldRun


class OutcomeInbox:
    """Collects outcomes on any thread and delivers them on the engine loop, in one hop for all that end together."""

    def __init__(
        self,
        slots: Slots,
        post: Callable[[Callable[[], None]], None],
        deliver: Callable[[Sequence[tuple[HeldRun, Outcome]]], None],
    ) -> None:
        """`post` calls a function on the engine loop soon, from any thread; `deliver` takes the outcomes there."""
        self._slots = slots
        self._post = post
        self._deliver = deliver
        self._queue: deque[tuple[HeldRun, Outcome]] = deque()
        self._is_posted = False
        #: True while outcomes of early runs stay here without waking the engine: a timer drains them. Written on the
        #: engine loop, read on any thread.
        self.is_deferring = False

    def put(self, held: HeldRun, outcome: Outcome) -> None:
        """Queue the outcome of an attempt, and have it delivered soon unless it is deferred. Thread: any."""
        self._queue.append((held, outcome))
        if held.is_early:
            if (
                held.starts_at is not None
            ):  # after it is queued: a drain that sees the attempt without a slot finds its outcome
                self._slots.leave(held)
            if self.is_deferring:
                return
        if not self._is_posted:  # `drain` clears this before it takes, so an outcome queued now is taken by that hop
            self._is_posted = True
            self._post(self.drain)

    def drain(self) -> None:
        """Deliver every outcome queued so far. Thread: engine loop."""
        self._is_posted = False
        ended = [self._queue.popleft() for _ in range(len(self._queue))]
        if ended:
            self._deliver(ended)

    def set_deferring(self, *, deferring: bool) -> None:
        """Let outcomes of early runs wait for the next `drain`, or if False, be delivered soon. Thread: engine loop."""
        self.is_deferring = deferring
