"""The outcome inbox: passes the outcomes of attempts from the executors, on many threads, to their worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from mainspring.engine.work.slots import Slots
from mainspring.model.outcome import Outcome
from mainspring.ports.executor import HeldRun


class OutcomeInbox:
    """Collects outcomes on any thread and delivers them to the worker on the engine loop.

    Outcomes that arrive together are delivered in one call, to wake the engine less often.
    """

    def __init__(
        self,
        slots: Slots,
        post: Callable[[Callable[[], None]], None],
        deliver: Callable[[Sequence[tuple[HeldRun, Outcome]]], None],
    ) -> None:
        """Make an empty inbox. `deliver` receives the outcomes, each with its run, on the engine loop.

        `post` calls a function on that loop soon, from any thread. `slots`: the slots of the worker; `put` releases the
        slot of an attempt that took it on the handlers' loop.
        """
        self._slots = slots
        self._post = post
        self._deliver = deliver
        self._queue: deque[tuple[HeldRun, Outcome]] = deque()
        self._is_posted = False
        #: True while the outcomes of runs claimed ahead stay here without waking the engine, until a timer calls
        #: `drain`. Written on the engine loop, read on any thread.
        self.is_deferring = False

    def put(self, held: HeldRun, outcome: Outcome) -> None:
        """Queue the outcome of an attempt, and deliver it soon unless it is deferred (`set_deferring`). Thread: any.

        If the attempt took its slot on the handlers' loop, release the slot.
        """
        self._queue.append((held, outcome))
        if held.is_early:
            if held.starts_at is not None:
                # Only after the outcome was queued: if the engine sees the attempt without a slot, `drain` finds it.
                self._slots.leave(held)
            if self.is_deferring:
                return
        if not self._is_posted:  # `drain` clears this before it takes outcomes, so it takes this one, too
            self._is_posted = True
            self._post(self.drain)

    def drain(self) -> None:
        """Deliver every outcome queued so far to the worker. Thread: engine loop."""
        self._is_posted = False
        ended = [self._queue.popleft() for _ in range(len(self._queue))]
        if ended:
            self._deliver(ended)

    def set_deferring(self, *, deferring: bool) -> None:
        """Defer the outcomes of runs claimed ahead (they wait here until the next `drain`), or stop deferring them.

        Why: a deferred outcome does not wake the engine. Once deferring has stopped, the next outcome takes the waiting
        ones along. Thread: engine loop.
        """
        self.is_deferring = deferring
